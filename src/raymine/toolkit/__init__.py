"""Samplers, scans and volume rendering as plain functions and small classes, for any field and any training loop.

Modules: `pack` (which samples belong to which ray), `scan`, `volume`, `importance`, `boxes`, `lenses`, `occupancy`,
`spans`, `proposal`, `contraction` and `losses`. Everything runs on CPU and CUDA. Docstrings say what is differentiable.
"""

from . import boxes as boxes
from . import contraction as contraction
from . import importance as importance
from . import lenses as lenses
from . import losses as losses
from . import occupancy as occupancy
from . import occupancy_update as occupancy_update
from . import pack as pack
from . import proposal as proposal
from . import scan as scan
from . import spans as spans
from . import volume as volume
