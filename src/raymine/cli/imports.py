"""Make modules of the user importable from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection


def find_own_modules(allow: Collection[str], recipe: str = "") -> None:
    """If the user names a package to import, search the working folder too, after the installed packages.

    Python does this for scripts and for `python -m`, but not for an installed command such as `raymine`.
    """
    if (allow or ":" in recipe) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
