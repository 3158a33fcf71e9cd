"""Samplers: they place the samples along rays (`contracts.Sampler`)."""

from .occupancy import OccupancyConfig as OccupancyConfig
from .occupancy import OccupancySampler as OccupancySampler
