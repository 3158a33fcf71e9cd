"""Evaluation: image metrics, and the comparison of rendered views with the images of a scene."""

from .files import PictureChoice as PictureChoice
from .fit import FitChoice as FitChoice
from .fit import FitConfig as FitConfig
from .fit import Fitted as Fitted
from .lpips import Lpips as Lpips
from .lpips import LpipsChoice as LpipsChoice
from .metrics import psnr as psnr
from .metrics import ssim as ssim
from .protocol import Protocol as Protocol
from .views import Evaluation as Evaluation
from .views import ViewScore as ViewScore
from .views import evaluate_views as evaluate_views
