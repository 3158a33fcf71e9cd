"""How good a model is: image metrics and the evaluation of held-out views."""

from .metrics import psnr as psnr
from .metrics import ssim as ssim
from .views import Evaluation as Evaluation
from .views import ViewScore as ViewScore
from .views import evaluate_views as evaluate_views
