"""Progress of benchmarks on stderr. Imported only when a benchmark runs, because it imports torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import TracebackType

from rich.markup import escape

from raymine.bench import BenchRun, Look
from raymine.progress_bar import ProgressBar, text_column
from raymine.scenes.builtin import builtin_scene

from . import output

_QUARTERS = (0.25, 0.5, 0.75, 1.0)


class BenchProgress:
    """Shows a bar per run in a terminal, a few lines per run elsewhere, on stderr."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._console = output.messages()
        self._bar = ProgressBar(self._console, text_column())
        self._title = ""
        self._psnr = ""
        self._shown = 0.0
        self._folder: Path | None = None

    def __enter__(self) -> BenchProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._bar.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._folder is not None:
            output.say(f"Finished runs are kept. To continue, repeat the command with --resume --out {self._folder}")

    def make_builtin(self) -> None:
        """Generate the built-in scene, with a progress bar. Its first use takes seconds."""
        builtin_scene(progress=partial(self.loading, "views of the built-in scene"))

    def loading(self, what: str, done: int, total: int) -> None:
        self._show(f"Loading {what}", done, total, f"{done} of {total}")

    def opened(self, folder: Path) -> None:
        self._folder = folder

    def run_started(self, number: int, total: int, policy: str, seed: int) -> None:
        self._title, self._psnr, self._shown = f"run {number} of {total}: {policy}, seed {seed}", "", 0.0
        self._line(self._title)
        self.trained(0.0)

    def trained(self, seconds: float) -> None:
        self._show(self._title, seconds, self._seconds, f"{seconds:.1f} of {self._seconds:g} s  {self._psnr}")

    def looked(self, look: Look) -> None:
        psnr = "no PSNR" if look.psnr is None else f"{look.psnr:.2f} dB"
        self._psnr = f"{psnr} at {look.seconds:.1f} s"
        # In a log file, four lines per run are enough.
        passed = [share for share in _QUARTERS if self._shown < share * self._seconds <= look.seconds]
        if passed:
            self._line(f"  {look.seconds:.1f} s, step {look.step}: {psnr}")
        self._shown = look.seconds

    def run_ended(self, run: BenchRun) -> None:
        psnr = "no PSNR" if run.psnr is None else f"{run.psnr:.2f} dB on all pixels"
        text = f"{run.policy}, seed {run.seed}: {psnr}, {run.steps} steps of {run.step_ms.median:.2f} ms"
        self._console.print(escape(text), soft_wrap=True)

    def _show(self, title: str, done: float, total: float, text: str) -> None:
        if self._console.is_terminal:
            self._bar.show(title, done, total or None, text)

    def _line(self, text: str) -> None:
        """Print a line if stderr is not a terminal; a terminal has the bar."""
        if not self._console.is_terminal:
            self._console.print(escape(text), soft_wrap=True)


class StepProgress:
    """Shows a bar in a terminal, a line per stage elsewhere, on stderr."""

    def __init__(self) -> None:
        self._console = output.messages()
        self._bar = ProgressBar(self._console)
        self._said = ""

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def make_builtin(self) -> None:
        """As `BenchProgress.make_builtin`."""
        builtin_scene(progress=partial(self.show, "views of the built-in scene"))

    def show(self, what: str, done: float, total: float) -> None:
        """Show the stage `what` at `done` of `total`."""
        if self._console.is_terminal:
            self._bar.show(what, done, max(total, 1e-9))
        elif what != self._said:
            output.say(what)
        self._said = what
