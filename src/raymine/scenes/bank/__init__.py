"""The image bank: pictures of a scene, decoded once into one file that training reads pixels from."""

from .bank import ImageBank as ImageBank
from .bank import open_bank as open_bank
