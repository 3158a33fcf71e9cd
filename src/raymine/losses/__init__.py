"""Loss terms (see `contracts.Term`), one file each. The loss is the sum of a list of terms."""

from .coarse import CoarseColourLoss as CoarseColourLoss
from .colour import ColourLoss as ColourLoss
from .colour import squared_errors as squared_errors
from .depth import DepthLoss as DepthLoss
from .distortion import DistortionLoss as DistortionLoss
from .free_space import FreeSpaceLoss as FreeSpaceLoss
from .interlevel import InterlevelLoss as InterlevelLoss
from .judged import JudgedLoss as JudgedLoss
from .judged import judged_loss as judged_loss
from .mask import MaskLoss as MaskLoss
from .opacity import OpacityLoss as OpacityLoss
from .total_variation import TotalVariation as TotalVariation
