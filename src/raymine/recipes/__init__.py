"""Recipes: functions that return a complete training config for a scene on a device."""

from .about import About as About
from .about import about as about
from .about import described as described
from .registry import AUTO as AUTO
from .registry import CUSTOM as CUSTOM
from .registry import RECIPES as RECIPES
from .registry import AnyRecipe as AnyRecipe
from .registry import Recipe as Recipe
from .registry import build as build
from .registry import chosen_for as chosen_for
from .registry import find as find
from .registry import name_of as name_of
from .registry import names as names
from .registry import packages_of as packages_of
from .registry import twin_of as twin_of
