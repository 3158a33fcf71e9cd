"""Which pixels a training step samples, and the background colours behind them."""

from .config import PixelConfig as PixelConfig
from .sampler import DrawnPixels as DrawnPixels
from .sampler import PixelSampler as PixelSampler
from .uniform import Pixels as Pixels
from .uniform import draw_backgrounds as draw_backgrounds
from .uniform import draw_uniform as draw_uniform
