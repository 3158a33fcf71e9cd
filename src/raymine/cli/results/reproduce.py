"""`raymine reproduce`: rerun a run from its manifest, and compare."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from raymine.errors import ConfigError, RunError

from .. import output
from ..imports import find_own_modules

if TYPE_CHECKING:
    from raymine.experiment.finished.reproduce import Reproduction


@dataclass(frozen=True)
class Reproduce:
    """Train a run again from its manifest and config, and compare tensors, metrics, code, packages and images."""

    run: tyro.conf.Positional[str]
    """Run folder, or the name of a run."""
    out: Path | None = None
    """Folder of the rerun. The next free one beside the run if not given."""
    resume: bool = False
    """Continue an interrupted rerun in --out."""
    against: Path | None = None
    """Compare with this run instead of training anew."""
    anyway: bool = False
    """Rerun although the scene or its images have changed."""
    device: Literal["cpu", "cuda"] | None = None
    """Another device than that of the run."""
    threads: int | None = None
    """Another number of threads than that of the run."""
    tolerance: float = 0.2
    """PSNR in dB that counts as noise where a run cannot repeat bit for bit."""
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Package whose classes the run may use; importing it runs its code. Repeat it for more packages."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 if the run was reproduced, 1 if the rerun differs."""
        from raymine.experiment.finished.reproduce import compare_results
        from raymine.rundir.index import find_run

        if not self.tolerance >= 0:
            raise ConfigError(f"--tolerance must be 0 or more dB, got {self.tolerance}.")
        find_own_modules(self.allow)
        run = find_run(self.run, Path("runs"))
        if self.against is not None:
            other = find_run(str(self.against), Path("runs"))
        else:
            rerun = self._rerun(run)
            if isinstance(rerun, int):
                return rerun
            other = rerun
        found = compare_results(run, other, tolerance=self.tolerance, allow=self.allow)
        if self.json:
            output.emit_json({**asdict(found), "reproduced": found.reproduced})
        else:
            _print(found)
        output.say(_sentence(found))
        return 0 if found.reproduced else 1

    def _rerun(self, run: Path) -> Path | int:
        """Train anew. Returns the folder, or an exit code if a signal stopped it."""
        from raymine.experiment.finished.reproduce import changed_inputs, reproduction_request

        from ..training.narrate import narrated_train

        request = reproduction_request(
            run, out=self.out, resume=self.resume, device=self.device, threads=self.threads, allow=self.allow
        )
        changed = changed_inputs(run, allow=self.allow)
        if changed and not self.anyway:
            raise RunError(
                f"{run} cannot be reproduced, since its input has changed: {'; '.join(changed)}.",
                hint="Put it back as it was, or rerun with what is there now: --anyway",
            )
        for what in changed:
            output.warn(f"Changed since {run} was made: {what}.")
        result = narrated_train(replace(request, command=("raymine", *sys.argv[1:])))
        if result.status == "stopped":
            output.say(f"Stopped at step {result.step}. To continue: --out {result.run} --resume")
            return result.exit_code
        return result.run


def _sentence(found: Reproduction) -> str:
    if found.verdict == "equal":
        return f"Reproduced: all {found.tensor_count} tensors of step {found.step} are equal bit for bit."
    if found.step != found.rerun_step:
        return f"Not reproduced: the run has step {found.step}, the rerun has step {found.rerun_step}."
    since = "" if found.first_step is None else f", metrics from step {found.first_step} on"
    which = f"{len(found.tensors)} of {found.tensor_count} tensors differ{since}"
    if found.verdict == "within noise" and not found.exact:
        return f"Reproduced within noise: {which}, and the PSNR agrees. With --deterministic, bits would be equal."
    cause = ", ".join(each.what for each in found.origins[:6])
    why = f"What differs: {cause}." if cause else "Nothing that was recorded differs."
    return f"Not reproduced: {which}. {why}"


def _print(found: Reproduction) -> None:
    names = (str(found.run), str(found.rerun))
    rows = [("step", str(found.step), str(found.rerun_step))]
    rows += [(s.what, output.number(s.first, 4), output.number(s.second, 4)) for s in found.scores]
    rows += [(each.what, _cell(each.first), _cell(each.second)) for each in found.origins]
    output.results().print(output.table("", ("", *names), rows))
    if found.tensors:
        shown = [(t.name, "other shape" if t.largest is None else f"{t.largest:.3g}") for t in found.tensors[:10]]
        output.results().print(output.table("tensors that differ", ("tensor", "largest difference"), shown))


def _cell(value: object) -> str:
    return "-" if value is None else output.shortened(str(value))
