"""Drop-in replacements: the public API of other libraries on top of raymine. A program only changes one import."""

from . import nerfacc as nerfacc
from . import tinycudann as tinycudann
