"""Checks of a scene before training."""

from .check import check_scene as check_scene
