"""Run as `python -m raymine.cli.training.trial SETTINGS ARGUMENT ...`: `raymine train` with settings of the config.

One trial of a sweep, which `raymine.pipeline.child` starts. SETTINGS is a JSON object; its key `:prune` has the rule by
which this trial may be stopped early, if the sweep has one.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .. import output
from ..app import guarded, parse
from .train import Train

if TYPE_CHECKING:
    from raymine.experiment import SilentObserver
    from raymine.files import JSON
    from raymine.pipeline.prune import Prune


def main(argv: Sequence[str]) -> int:
    """argv: the settings as JSON, then the arguments of `raymine train`. Prints the result as JSON."""
    settings, *arguments = argv
    return guarded(["train", *arguments], lambda: _train(settings, arguments))


def _train(text: str, arguments: list[str]) -> int:
    from raymine.pipeline.prune import PRUNE_KEY, Prune, looks_of

    from .narrate import narrated_train

    parsed = parse("train", arguments)
    if isinstance(parsed, int):
        return parsed
    settings = json.loads(text)
    rule = settings.pop(PRUNE_KEY, None)
    # The manifest records a command that can be typed.
    command = ("python", "-m", "raymine.cli.training.trial", text, *arguments)
    train = cast(Train, parsed)
    request = replace(train.request(settings), command=command)
    if rule is None or request.out is None:
        result = narrated_train(request, verbose=train.verbose)
        output.emit_json(asdict(result))
        return result.exit_code
    prune = Prune(**rule)
    # A trial that was killed between the decision and its record is not trained on.
    verdict = _verdict(prune, request.out) if _is_stopped(request.out) else None
    if verdict is not None:
        last = looks_of(request.out)[-1]
        kept: dict[str, JSON] = {"run": str(request.out), "status": "stopped", "step": last.step, "pruned": verdict}
        output.emit_json(kept)
        return 0
    watcher, observer = _watch(prune, request.out)
    result = narrated_train(request, verbose=train.verbose, also=observer)
    pruned = watcher.get("pruned") if result.status == "stopped" else None
    output.emit_json({**asdict(result), "pruned": pruned})
    return 0 if pruned else result.exit_code


def _is_stopped(run: Path) -> bool:
    """Whether the run was stopped in good order, and has not finished."""
    from raymine.files import read_object
    from raymine.run_files import MANIFEST

    return bool(read_object(run / MANIFEST).get("status") == "stopped")


def _verdict(prune: Prune, run: Path) -> dict[str, JSON] | None:
    """Step, PSNR and reason if the rule stops this run at its latest look; None if it goes on."""
    from raymine.pipeline.prune import looks_of, others_of

    looks = looks_of(run)
    why = prune.reason(looks, others_of(run.parent))
    return {"step": looks[-1].step, "psnr": looks[-1].psnr, "why": why} if why else None


def _watch(prune: Prune, run: Path) -> tuple[dict[str, JSON], SilentObserver]:
    """An observer that stops training when the rule says so, and where it notes why."""
    from raymine.experiment import EvalInfo, SilentObserver

    noted: dict[str, JSON] = {}

    class Watcher(SilentObserver):
        def on_eval(self, info: EvalInfo) -> None:
            # The journal comes before other observers, so the log has this look already.
            verdict = None if noted else _verdict(prune, run)
            if verdict is not None:
                noted["pruned"] = verdict
                output.say(f"Pruned at step {info.step}: {verdict['why']}")
                # Training saves a checkpoint and stops, as it does for a signal from outside.
                signal.raise_signal(signal.SIGTERM)

    return noted, Watcher()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
