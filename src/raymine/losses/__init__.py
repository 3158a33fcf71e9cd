"""Loss terms (see `contracts.Term`): one file each. A loss is a list of them."""

from .coarse import CoarseColourLoss as CoarseColourLoss
from .colour import ColourLoss as ColourLoss
from .colour import squared_errors as squared_errors
