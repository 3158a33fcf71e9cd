"""`raymine serve`: a small HTTP service that renders posed views of a trained run. Needs nothing but Python."""

from .limits import Limits as Limits
from .service import RenderService as RenderService
