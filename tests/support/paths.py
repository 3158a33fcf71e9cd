"""Folders of the repository, and an environment in which another process can import `support`."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
DOCS = REPOSITORY / "docs"


def environment(**changes: str) -> dict[str, str]:
    """Environment variables with which `python -m support.<name>` works."""
    found = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found), **changes}
