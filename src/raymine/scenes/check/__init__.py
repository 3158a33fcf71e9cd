"""Checks of a scene before training."""

from .check import SceneReport as SceneReport
from .check import check_scene as check_scene
from .check import examine_scene as examine_scene
