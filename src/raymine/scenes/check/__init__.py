"""Checks of a scene before anything is trained on it."""

from .check import check_scene as check_scene
