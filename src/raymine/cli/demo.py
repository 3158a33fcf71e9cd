"""`raymine demo`: from nothing to novel views in about a minute, without data and without a GPU."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raymine.errors import ConfigError

from . import output

if TYPE_CHECKING:
    from raymine.evaluate import Evaluation
    from raymine.experiment import LoadedRun

# The video lasts 4 s; a slow machine renders fewer views for it, in about as many seconds as given here.
VIDEO_SECONDS = 4.0
RENDER_SECONDS = 20.0
FEWEST_VIEWS, MOST_VIEWS = 16, 60


@dataclass(frozen=True)
class Demo:
    """Train the built-in scene, score it on held-out views and render an orbit. No data, no GPU needed."""

    seconds: float = 45.0
    """Training time."""
    out: Path = Path("runs/demo")
    """Run folder; when it is taken, the next free name."""
    seed: int = 0
    """Decides every random draw."""

    def execute(self) -> int:
        """Exit code 0 when everything was made, 130 or 143 when a signal stopped the training."""
        from raymine.experiment import TrainRequest, load_run

        from .evaluate import evaluate_run
        from .narrate import narrated_train

        if not 0 < self.seconds < float("inf"):
            raise ConfigError(f"--seconds must be a positive number, got {self.seconds}.")
        started = time.perf_counter()
        out = next_free(self.out)
        request = TrainRequest(
            scene="builtin",
            max_seconds=self.seconds,
            out=out,
            seed=self.seed,
            command=("raymine", *sys.argv[1:]),
        )
        result = narrated_train(request)
        if result.status == "stopped":
            output.say(f"Stopped at step {result.step}. Start again with: raymine demo")
            return result.exit_code
        loaded = load_run(out)
        evaluation = evaluate_run(loaded, "test", out / "eval")
        orbit = render_orbit(loaded, out, orbit_views(evaluation))
        _panel(out, evaluation, orbit, result.elapsed, time.perf_counter() - started)
        return 0


def next_free(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, ... when it exists."""
    number, candidate = 2, path
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def orbit_views(evaluation: Evaluation) -> int:
    """As many views as this machine renders in `RENDER_SECONDS`, judged by the quickest view of the evaluation."""
    quickest = min((view.seconds for view in evaluation.views), default=1.0)
    return max(FEWEST_VIEWS, min(MOST_VIEWS, int(RENDER_SECONDS / max(quickest, 1e-3))))


def render_orbit(loaded: LoadedRun, out: Path, count: int) -> Path:
    """An orbit of `count` views as video (or frames, without the `video` extra); where it is."""
    from raymine.export import orbit

    from .render import default_target, views_along, write_views

    target = default_target(out / "export", "orbit")
    path = orbit(loaded.scene, count)
    with output.progress_bar("Rendering an orbit") as progress:
        return write_views(views_along(loaded, path, progress), target, ("colour",), count / VIDEO_SECONDS)[0]


def _panel(out: Path, evaluation: Evaluation, orbit: Path, trained: float, total: float) -> None:
    from rich.markup import escape
    from rich.panel import Panel

    lines = (
        f"PSNR {evaluation.psnr:.2f} dB, SSIM {evaluation.ssim:.3f} on {len(evaluation.views)} views it never saw,",
        f"after {output.duration(trained)} of training ({output.duration(total)} in all).",
        "",
        f"Look at    {out / 'eval' / 'images'}  (predicted, true, error, depth)",
        f"           {orbit}  (an orbit of views that no photo shows)",
        "",
        f"Score it   raymine eval {out}",
        f"Fly        raymine render {out} --path orbit --frames 120 --depth",
        "Your own   raymine check SCENE, then raymine train SCENE",
    )
    output.results().print(Panel(escape("\n".join(lines)), title="raymine demo", expand=False))
