"""Modules of the user's own on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection


def find_own_modules(allow: Collection[str], recipe: str = "") -> None:
    """Where the user names a package to import, look for it in the working folder too, after all that is installed.

    Python does so for scripts and for `python -m`, but not for an installed command such as `raymine`.
    """
    if (allow or ":" in recipe) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
