"""LPIPS, version 0.1: a perceptual distance of two images, by features of AlexNet or VGG16 and learned linear heads."""

from .network import Lpips as Lpips
from .weights import LpipsChoice as LpipsChoice
from .weights import LpipsNet as LpipsNet
from .weights import WeightsUnavailable as WeightsUnavailable
from .weights import chosen_nets as chosen_nets
from .weights import load_lpips as load_lpips
