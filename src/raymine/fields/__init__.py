"""Radiance fields: modules that map positions and directions to pre-activations (`contracts.Field`)."""

from .hash_field import HashField as HashField
from .hash_field import HashFieldConfig as HashFieldConfig
