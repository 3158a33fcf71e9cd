"""The built-in scene: a procedural still life that needs no data and no network."""

from .scene import BuiltinConfig as BuiltinConfig
from .scene import builtin_scene as builtin_scene
