"""`raymine runs`: list, filter, sort, compare, tag and delete runs."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raymine.errors import ConfigError, RunError
from raymine.files import obstacle
from raymine.run_files import is_run

from .. import output

if TYPE_CHECKING:
    from raymine.rundir.compare import Comparison, Difference
    from raymine.rundir.summary import RunSummary

_ROOT = Path("runs")
_KEYS = {
    "started": lambda run: run.started,
    "name": lambda run: run.name,
    "scene": lambda run: run.scene,
    "recipe": lambda run: run.recipe,
    "step": lambda run: run.step,
    "time": lambda run: run.elapsed,
    "psnr": lambda run: run.psnr,
    "ssim": lambda run: run.eval_ssim,
}
_RANKED = ("psnr", "ssim")
"""Scores, the best of which comes first. Their runs must share a protocol."""


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder, and filter, sort, compare, tag or delete them."""

    root: Path = _ROOT
    """Folder that holds the run folders."""
    all: bool = False
    """List the runs of every folder in which this user has trained, not only those of --root."""
    scene: str | None = None
    """Only runs whose scene folder has this name, or a name that contains it."""
    recipe: str | None = None
    """Only runs of this recipe."""
    status: Literal["running", "finished", "stopped", "failed", "crashed", "unreadable"] | None = None
    """Only runs with this status."""
    tag: tuple[str, ...] = ()
    """With one value: only runs with this tag. With a run and names, `--tag RUN NAME ...`: give the run these tags."""
    untag: tuple[str, ...] = ()
    """`--untag RUN NAME ...`: take these tags from the run."""
    sort: Literal["started", "name", "scene", "recipe", "step", "time", "psnr", "ssim"] = "started"
    """What to sort by. `psnr` and `ssim` are those of `raymine eval`, best first; a run that was not evaluated has the
    quick PSNR of its test views."""
    across_protocols: bool = False
    """Rank scores although they were measured by different protocols."""
    compare: tuple[str, ...] = ()
    """`--compare A B`: two runs side by side, settings that differ first."""
    delete: tuple[str, ...] = ()
    """`--delete RUN ...`: move these runs to the folder .trash beside them. Asks first."""
    yes: bool = False
    """Delete without asking."""
    rebuild: bool = False
    """Write the run index anew from the run folders."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.rundir.index import list_all, list_runs, rebuild

        if self.compare:
            return self._compare()
        if len(self.tag) > 1 or self.untag:
            return self._change_tags()
        if self.delete:
            return self._delete()
        self._require_folder_of_runs()
        if self.rebuild:
            output.say(f"Rebuilt the run index: {_count(len(rebuild([self.root])))}.")
        found = list_all() if self.all else list_runs(self.root)
        found = self._sorted(self._chosen(found))
        if self.json:
            output.emit_json({"root": str(self.root), "runs": [asdict(summary) for summary in found]})
        elif found:
            _print_runs(found)
        elif self._filters():
            output.say(f"No runs in {self.root} with {', '.join(self._filters())}.")
        else:
            output.say(f"No runs in {self.root}. `raymine demo` or `raymine train SCENE` makes one.")
        return 0

    def _filters(self) -> list[str]:
        given = {"scene": self.scene, "recipe": self.recipe, "status": self.status, "tag": next(iter(self.tag), None)}
        return [f"--{name} {value}" for name, value in given.items() if value is not None]

    def _chosen(self, found: list[RunSummary]) -> list[RunSummary]:
        tag = next(iter(self.tag), None)
        return [
            run
            for run in found
            if (self.scene is None or self.scene in Path(run.scene).name)
            and (self.recipe is None or run.recipe == self.recipe)
            and (self.status is None or run.status == self.status)
            and (tag is None or tag in run.tags)
        ]

    def _sorted(self, found: list[RunSummary]) -> list[RunSummary]:
        key = _KEYS[self.sort]
        if self.sort not in _RANKED:
            return sorted(found, key=key)
        scored = [run for run in found if key(run) is not None]
        protocols = sorted({run.protocol for run in scored})
        if len(protocols) > 1 and not self.across_protocols:
            told = ", ".join(_runs_with(name, scored) for name in protocols)
            raise ConfigError(
                f"--sort {self.sort}: these runs were scored by different protocols: {told}.",
                hint="Evaluate them in the same way (`raymine eval RUN`), list only those of one image size (--scene, "
                "--recipe, --tag), or rank them anyhow with --across-protocols.",
            )
        rest = [run for run in found if key(run) is None]
        return [*sorted(scored, key=lambda run: -(key(run) or 0.0)), *rest]

    def _compare(self) -> int:
        from raymine.rundir.compare import compare_runs
        from raymine.rundir.index import find_run

        if len(self.compare) != 2:
            raise ConfigError(f"--compare takes two runs, got {len(self.compare)}.", hint="raymine runs --compare A B")
        first, second = (find_run(text, self.root) for text in self.compare)
        found = compare_runs(first, second)
        if self.json:
            output.emit_json(asdict(found))
        else:
            _print_comparison(found)
        return 0

    def _change_tags(self) -> int:
        from raymine.rundir.index import find_run, register
        from raymine.rundir.tags import change_tags

        if self.tag and self.untag:
            raise ConfigError("--tag and --untag were both given.", hint="Give one of them.")
        if len(self.untag) == 1:
            raise ConfigError("--untag needs a run and the tags to take from it.", hint="raymine runs --untag RUN NAME")
        text, *names = self.tag or self.untag
        run = find_run(text, self.root)
        tags = change_tags(run, add=names) if self.tag else change_tags(run, remove=names)
        register(run)
        if self.json:
            output.emit_json({"run": str(run), "tags": tags})
        else:
            output.say(f"{run}: {', '.join(tags) or 'no tags'}")
        return 0

    def _delete(self) -> int:
        from raymine.rundir.index import find_run, list_all
        from raymine.rundir.removal import move_to_trash

        runs = [find_run(text, self.root) for text in self.delete]
        if not self.yes:
            if not sys.stdin.isatty():
                raise ConfigError("--delete asks before it deletes, and there is nobody to ask.", hint="Add --yes.")
            output.say("\n".join(str(run) for run in runs))
            if input(f"Delete {_count(len(runs))}? [y/N] ").strip().lower() not in ("y", "yes"):
                output.say("Nothing was deleted.")
                return 1
        moved = [move_to_trash(run) for run in runs]
        list_all()
        if self.json:
            output.emit_json({"moved": [{"run": str(a), "to": str(b)} for a, b in zip(runs, moved, strict=True)]})
        for run, target in zip(runs, moved, strict=True):
            output.say(f"Moved {run} to {target}. To free its space, remove that folder.")
        return 0

    def _require_folder_of_runs(self) -> None:
        """Raise `RunError` if --root is no folder, or a run itself. The folder that is not named may be missing."""
        fault = obstacle(self.root, folder=True)
        if fault is None and not self.root.exists() and self.root != _ROOT:
            fault = "does not exist"
        if fault is not None:
            raise RunError(f"--root {self.root} {fault}.", hint="Give the folder that holds the run folders.")
        if is_run(self.root):
            parent = self.root.absolute().parent
            raise RunError(f"--root {self.root} is a run, not a folder of runs.", hint=f"List it with --root {parent}")


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _runs_with(protocol: str, scored: list[RunSummary]) -> str:
    """How many runs have a protocol, and of which images it is where that is known."""
    found = [run for run in scored if run.protocol == protocol]
    measured = f" ({found[0].measured})" if found[0].measured else ""
    return f"{_count(len(found))} with {_protocol(protocol)}{measured}"


def _protocol(name: str) -> str:
    return name if len(name) < 20 else name[:8]


def _print_runs(found: list[RunSummary]) -> None:
    # Show the columns of held-out views, evaluations and tags only if a run has them.
    held_out = any(run.held_out_psnr is not None for run in found)
    evaluated = any(run.eval_psnr is not None for run in found)
    protocols = len({run.protocol for run in found if run.psnr is not None}) > 1 or evaluated
    tagged = any(run.tags for run in found)
    scores = ["train\nPSNR", "test\nPSNR"]
    scores += ["held-out\nPSNR"] if held_out else []
    scores += ["eval\nPSNR", "eval\nSSIM"] if evaluated else []
    columns = ["run", "scene", "recipe", "status", "step", *scores, *(["protocol"] if protocols else [])]
    columns += ["started\n(UTC)", "trained", *(["tags"] if tagged else [])]
    rows = []
    for run in found:
        cells = [str(run.path), Path(run.scene).name, run.recipe, run.status, str(run.step)]
        cells += [output.number(run.train_psnr), output.number(run.test_psnr)]
        cells += [output.number(run.held_out_psnr)] if held_out else []
        cells += [output.number(run.eval_psnr), output.number(run.eval_ssim, 4)] if evaluated else []
        cells += [_protocol(run.protocol)] if protocols else []
        cells += [run.started[:16].replace("T", " "), output.duration(run.elapsed)]
        rows.append([*cells, *([", ".join(run.tags)] if tagged else [])])
    output.results().print(output.table("", columns, rows, right=("step", *scores, "trained")))
    for run in found:
        if run.problem:
            output.warn(f"{run.path}: {run.problem}")


def _print_comparison(found: Comparison) -> None:
    names = (str(found.first.path), str(found.second.path))
    if names[0] == names[1]:
        output.say("The two runs are one.")

    def show(title: str, entries: list[Difference]) -> None:
        rows = [(each.what, _cell(each.first), _cell(each.second)) for each in entries]
        if rows:
            output.results().print(output.table(title, ("", *names), rows))

    differing = [each for each in found.settings if not each.same]
    show("settings that differ", differing)
    show("scores", list(found.scores))
    show("code, packages, machine, scene and images that differ", list(found.origins))
    equal = len(found.settings) - len(differing)
    output.say(f"{'No setting differs' if not differing else f'{equal} settings are equal'}; --json lists all of them.")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else output.shortened(str(value))
