"""Drop-in replacements: the public API of other libraries on top of raymine. A program only changes one import."""

from . import nerfacc as nerfacc
from . import nerfacc_v02 as nerfacc_v02
from . import nerfacc_v03 as nerfacc_v03
from . import tinycudann as tinycudann
