"""Radiance fields: modules that answer `contracts.FieldInput` with pre-activations."""

from .hash_field import HashField as HashField
from .hash_field import HashFieldConfig as HashFieldConfig
