"""Samplers: where along a ray the field is asked."""

from .occupancy import OccupancyConfig as OccupancyConfig
from .occupancy import OccupancySampler as OccupancySampler
