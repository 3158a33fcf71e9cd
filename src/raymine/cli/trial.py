"""One trial of a sweep: `raymine train` with settings of the recipe's config. Run by `raymine.pipeline.child`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from . import output
from .app import guarded, parse
from .train import Train


def main(argv: Sequence[str]) -> int:
    """argv: the settings as JSON, then the arguments of `raymine train`. Prints the result as JSON."""
    settings, *arguments = argv
    return guarded(["train", *arguments], lambda: _train(json.loads(settings), arguments))


def _train(settings: dict[str, object], arguments: list[str]) -> int:
    from .narrate import narrated_train

    parsed = parse("train", arguments)
    if isinstance(parsed, int):
        return parsed
    result = narrated_train(cast(Train, parsed).request(settings))
    output.emit_json(asdict(result))
    return result.exit_code
