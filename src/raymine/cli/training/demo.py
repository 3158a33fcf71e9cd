"""`raymine demo`: train, evaluate, render and report the built-in scene in about a minute."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .. import output

if TYPE_CHECKING:
    from raymine.evaluate import Evaluation
    from raymine.experiment import LoadedRun

# The video lasts 4 s. A slow machine renders fewer views, so that rendering takes about RENDER_SECONDS.
VIDEO_SECONDS = 4.0
RENDER_SECONDS = 20.0
FEWEST_VIEWS, MOST_VIEWS = 16, 60


@dataclass(frozen=True)
class Demo:
    """Train the built-in scene, evaluate its test views, render an orbit and write a report. Needs no data or GPU."""

    seconds: float = 45.0
    """Seconds of training."""
    out: Path = Path("runs/demo")
    """Run folder; if it exists, the next free name."""
    seed: int = 0
    """Seed of all random numbers."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Also say which backend runs each op, and why; `raymine doctor` lists them too."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        """Exit code 0 on success, 130 or 143 if a signal stopped the training."""
        from raymine.config import require_seconds
        from raymine.experiment import TrainRequest, load_run
        from raymine.report import write_report

        from ..results.evaluate import evaluate_run
        from .narrate import narrated_train

        require_seconds(self.seconds, "seconds")
        started = time.perf_counter()
        out = next_free(self.out)
        request = TrainRequest(
            scene="builtin",
            max_seconds=self.seconds,
            out=out,
            seed=self.seed,
            command=("raymine", *sys.argv[1:]),
        )
        result = narrated_train(request, verbose=self.verbose)
        found: dict[str, object] = {"run": out, "status": result.status, "step": result.step, "elapsed": result.elapsed}
        if result.status == "stopped":
            if self.json:
                output.emit_json(found)
            output.say(f"Stopped at step {result.step}. Start again with: raymine demo")
            return result.exit_code
        loaded = load_run(out)
        evaluation = evaluate_run(loaded, "test", out / "eval")
        orbit = render_orbit(loaded, out, orbit_views(evaluation))
        report = write_report((out,))
        for note in report.notes:
            output.say(note)
        if self.json:
            scores = {"test_psnr": evaluation.psnr, "test_ssim": evaluation.ssim, "views": len(evaluation.views)}
            output.emit_json(
                {**found, **scores, "pictures": out / "eval" / "images", "files": [orbit], "report": report.path}
            )
        else:
            _panel(out, evaluation, (report.path, orbit), result.elapsed, time.perf_counter() - started)
        return 0


def next_free(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, ... that does not exist."""
    number, candidate = 2, path
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def orbit_views(evaluation: Evaluation) -> int:
    """The number of views that this machine renders in `RENDER_SECONDS`, estimated from the fastest evaluated view."""
    quickest = min((view.seconds for view in evaluation.views), default=1.0)
    return max(FEWEST_VIEWS, min(MOST_VIEWS, int(RENDER_SECONDS / max(quickest, 1e-3))))


def render_orbit(loaded: LoadedRun, out: Path, count: int) -> Path:
    """Render an orbit of `count` views as a video, or as frames without the `video` extra; return its path."""
    from raymine.export import orbit

    from ..results.render import default_target, views_along, write_views

    target = default_target(out / "export", "orbit")
    path = orbit(loaded.scene, count)
    with output.progress_bar("Rendering an orbit") as progress:
        return write_views(views_along(loaded, path, progress), target, ("colour",), count / VIDEO_SECONDS)[0]


def _panel(out: Path, evaluation: Evaluation, files: tuple[Path, Path], trained: float, total: float) -> None:
    """Print the result. files: the report and the orbit."""
    from rich.markup import escape
    from rich.panel import Panel

    views = f"{len(evaluation.views)} test views, which were not trained on"
    lines = (
        f"PSNR {evaluation.psnr:.2f} dB, SSIM {evaluation.ssim:.3f} (higher is better) on {views},",
        f"after {output.duration(trained)} of training ({output.duration(total)} in all).",
        "",
        f"Look at    {files[0]}  (the report: open it in a browser)",
        f"           {out / 'eval' / 'images'}/*-sheet.png  (predicted, true, error, depth)",
        f"           {files[1]}  (new views on an orbit)",
        "",
        f"Evaluate   raymine eval {out}",
        f"Render     raymine render {out} --path orbit --frames 120 --depth",
        "Your own   raymine check SCENE, then raymine train SCENE",
    )
    output.results().print(Panel(escape("\n".join(lines)), title="raymine demo", expand=False))
