"""The image bank: the images of a scene, decoded once into one file from which training reads pixels."""

from .bank import ImageBank as ImageBank
from .bank import open_bank as open_bank
