"""Run as `python -m raymine.cli.trial SETTINGS ARGUMENT ...`: `raymine train` with settings of the recipe's config.

One trial of a sweep, which `raymine.pipeline.child` starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import cast

from . import output
from .app import guarded, parse
from .train import Train


def main(argv: Sequence[str]) -> int:
    """argv: the settings as JSON, then the arguments of `raymine train`. Prints the result as JSON."""
    settings, *arguments = argv
    return guarded(["train", *arguments], lambda: _train(settings, arguments))


def _train(settings: str, arguments: list[str]) -> int:
    from .narrate import narrated_train

    parsed = parse("train", arguments)
    if isinstance(parsed, int):
        return parsed
    # The manifest records a command that can be typed.
    command = ("python", "-m", "raymine.cli.trial", settings, *arguments)
    result = narrated_train(replace(cast(Train, parsed).request(json.loads(settings)), command=command))
    output.emit_json(asdict(result))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
