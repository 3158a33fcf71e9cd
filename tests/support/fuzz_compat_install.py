"""Fuzz of `install` of the drop-in replacements."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from support.fuzz import Args


def run_install(package: Any, name: str) -> Any:
    """`install` with what is already imported under that name; sys.modules is put back."""

    def run(there: int) -> Any:
        kept = {key: value for key, value in sys.modules.items() if key.split(".")[0] == name}
        try:
            for key in kept:
                del sys.modules[key]
            if there:
                sys.modules[name] = SimpleNamespace(__file__="there")  # type: ignore[assignment]
            return [package.install() is package, sys.modules[name] is package]
        finally:
            for key in [key for key in sys.modules if key.split(".")[0] == name]:
                del sys.modules[key]
            sys.modules.update(kept)

    return run


def installed(args: Args, done: list[bool]) -> str:
    """The package replaces nothing that is already there."""
    return "" if done == [True, True] and not args["there"] else "replaced another library"
