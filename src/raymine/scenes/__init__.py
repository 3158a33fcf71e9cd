"""Scenes: reads a folder of posed images, in any common format, as a normalised `Scene`."""

from __future__ import annotations

from .check import SceneReport, check_scene, examine_scene
from .digest import scene_digest
from .load import load_scene
from .problems import Problem

__all__ = ["Problem", "SceneReport", "check_scene", "examine_scene", "load_scene", "scene_digest"]
