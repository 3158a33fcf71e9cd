"""Run a pipeline: tasks in processes, as many at a time as there are places, retried when they fail.

One thread starts processes and looks after them, so that nothing has to be locked. A stage counts as done when its
record is written, which happens after its command has succeeded. So the process may be killed at any moment: the next
one repeats what was not recorded, and a training run continues from its checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raymine.errors import RunError
from raymine.files import JSON, UnreadableFile, file_lock, obstacle, read_json, resource_error
from raymine.run_files import is_run

from .devices import GIB, LOST, Place, Process, best_place, places
from .plan import Task, code_version, plan
from .spec import Pipeline
from .stages import OwnStage, Result

State = Literal["waiting", "running", "done", "skipped", "failed", "blocked"]

PIPELINE_LOCK = ".pipeline.lock"
"""The file in the folder of a pipeline or a sweep that keeps other processes from it."""
_POLL = 0.05
_GRACE = 60.0
"""Seconds in which a stage may save its work after a signal."""
_CROWDED = 10.0
"""Seconds without memory on any GPU after which that is told. What our own processes had is free before."""
_NOT_RETRIED = (2, 3, 7)
"""Exit codes of mistakes that another attempt does not mend: usage, scene, missing extra."""
_MOST_LOST = 10
"""How often a stage is started again because its machine was lost, which is not a failure of its own."""


@dataclass
class _Progress:
    """The state of a task while the pipeline runs. parts: what its key is made of, once it could be started."""

    state: State = "waiting"
    why: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    lost: int = 0
    not_before: float = 0.0
    seconds: float = 0.0


@dataclass
class _Running:
    """A process of a task. logged: bytes of the log that earlier attempts wrote."""

    task: Task
    place: Place
    process: Process
    started: float
    logged: int


@dataclass(frozen=True)
class TaskResult:
    """How a task ended. why: in words. seconds: of the command; 0 if it was skipped."""

    scene: str
    stage: str
    state: State
    why: str
    seconds: float


@dataclass(frozen=True)
class PipelineResult:
    """How a pipeline ended. results: of each scene, by stage. signal: the one that stopped it, or None."""

    tasks: tuple[TaskResult, ...]
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        return 0 if all(task.state in ("done", "skipped") for task in self.tasks) else 1


More = Callable[[PipelineResult], list[Task]]


def run_pipeline(
    pipeline: Pipeline,
    *,
    jobs: int | None = None,
    tell: Callable[[str], None],
    check: Callable[[], None] | None = None,
) -> PipelineResult:
    """Run what must run. tell: receives lines about progress. `RunError` if another process uses the folder.

    check: called before the first stage is started, if any must be; it may raise an error instead.
    """
    with locked(pipeline.out, "pipeline"):
        return run_tasks(pipeline, plan(pipeline), jobs=jobs, tell=tell, check=check)


def run_tasks(
    pipeline: Pipeline,
    tasks: list[Task],
    *,
    jobs: int | None,
    tell: Callable[[str], None],
    where: list[Place] | None = None,
    more: More | None = None,
    check: Callable[[], None] | None = None,
) -> PipelineResult:
    """Run these tasks as a pipeline runs its own. The caller holds the lock of the folder.

    where: the places to use, instead of those of this machine. more: called with what is known so far when a place is
    free and no task waits for one; returns further tasks, or [] if there are none now. check: see `run_pipeline`.
    """
    return _Runner(pipeline, tasks, where or places(jobs or pipeline.jobs), tell, more, check).run()


@contextlib.contextmanager
def locked(out: Path, what: str) -> Iterator[None]:
    """Keep other processes from the folder `out` within the block. what: a pipeline or a sweep, for messages."""
    from filelock import Timeout

    fault = obstacle(out, folder=True) or ("is the folder of a run" if is_run(out) else None)
    if fault:
        raise RunError(f"The folder {out} of the {what} {fault}.", hint="Give another `out`.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = file_lock(out / PIPELINE_LOCK)
        lock.acquire(timeout=0.5)
    except Timeout:
        raise RunError(
            f"The folder {out} is in use by another {what}.", hint="Wait for it, or give another `out`."
        ) from None
    except OSError as error:
        raise resource_error(error, f"use the folder of the {what}", out) from error
    try:
        yield
    finally:
        lock.release()


class _Runner:
    def __init__(
        self,
        pipeline: Pipeline,
        tasks: list[Task],
        where: list[Place],
        tell: Callable[[str], None],
        more: More | None,
        check: Callable[[], None] | None,
    ) -> None:
        self._pipeline = pipeline
        self._check = check
        self._tell = tell
        self._code = code_version(pipeline.code)
        self._tasks: list[Task] = []
        self._progress: dict[tuple[str, str], _Progress] = {}
        self._results: dict[str, dict[str, Result]] = {scene.name: {} for scene in pipeline.scenes}
        self._add(tasks)
        self._more = more
        self._free = list(where)
        self._running: list[_Running] = []
        self._crowded_since: float | None = None
        self._signal: int | None = None

    def run(self) -> PipelineResult:
        with self._signals():
            try:
                while self._signal is None and self._start_what_can():
                    self._wait()
            finally:
                self._stop()
        return self._so_far()

    def _so_far(self) -> PipelineResult:
        tasks = tuple(
            TaskResult(task.scene.name, task.name, p.state, p.why, p.seconds)
            for task, p in ((task, self._of(task)) for task in self._tasks)
        )
        return PipelineResult(tasks, self._results, self._signal)

    def _add(self, tasks: list[Task]) -> None:
        self._tasks += tasks
        for task in tasks:
            self._progress[task.scene.name, task.name] = _Progress()
            self._results.setdefault(task.scene.name, {})

    def _of(self, task: Task) -> _Progress:
        return self._progress[task.scene.name, task.name]

    def _start_what_can(self) -> bool:
        """Skip or start every task that can be; False if nothing runs or waits any more."""
        moving = True
        while moving:
            moving = False
            for task in self._tasks:
                progress = self._of(task)
                if progress.state == "waiting":
                    moving |= self._consider(task, progress)
            moving |= self._ask_for_more()
        return any(progress.state in ("waiting", "running") for progress in self._progress.values())

    def _ask_for_more(self) -> bool:
        """Whether there are further tasks; asked for only when a place is free that no task waits for."""
        if self._more is None or not self._free or any(p.state == "waiting" for p in self._progress.values()):
            return False
        tasks = self._more(self._so_far())
        self._add(tasks)
        return bool(tasks)

    def _consider(self, task: Task, progress: _Progress) -> bool:
        """Whether the state of a waiting task has changed."""
        before = [self._progress[task.scene.name, need] for need in task.needs]
        stuck = [need for need, p in zip(task.needs, before, strict=True) if p.state in ("failed", "blocked")]
        if stuck:
            progress.state, progress.why = "blocked", f"{stuck[0]} did not succeed"
            return True
        if any(p.state in ("waiting", "running") for p in before) or time.monotonic() < progress.not_before:
            return False
        results = self._results[task.scene.name]
        if not progress.parts:
            progress.parts = task.parts(results, self._code)
            verdict, progress.why = task.decide(progress.parts)
            record = task.record()
            if verdict == "skip" and record is not None:
                progress.state = "skipped"
                results[task.name] = record.result
                return True
        place = self._place()
        if place is None:
            return False
        self._start(task, progress, place)
        return True

    def _place(self) -> Place | None:
        """The place to use next. If there is none because of other programs, that is told once, until there is one."""
        place = best_place(self._free, [running.place for running in self._running])
        if place is not None or self._running:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = time.monotonic()
        elif time.monotonic() - self._crowded_since > _CROWDED:
            self._crowded_since = math.inf
            need = min(place.memory for place in self._free) / GIB
            self._tell(f"Waiting until a GPU has {need:g} GiB of free memory: other programs use it.")
        return place

    def _start(self, task: Task, progress: _Progress, place: Place) -> None:
        if self._check is not None:
            self._check()
            self._check = None
        self._free.remove(place)
        progress.state, progress.attempts = "running", progress.attempts + 1
        task.forget()
        site = task.site(self._results[task.scene.name], progress.parts)
        if isinstance(task.stage, OwnStage):
            words = ["own", *(word.format_map(site.words) for word in task.stage.command)]
            folder = task.stage.folder
        else:
            for path in task.stage.leftovers(site):
                _remove(path, task.folder)
            words = [task.stage.program, *task.stage.command(site), *flags(task)]
            folder = self._pipeline.file.absolute().parent
        task.log.parent.mkdir(parents=True, exist_ok=True)
        process, logged = _launch(place, words, folder, task.log)
        self._running.append(_Running(task, place, process, time.monotonic(), logged))
        again = f", attempt {progress.attempts}" if progress.attempts > 1 else ""
        self._tell(f"{task.scene.name}: {task.name} started on {place.name}{again}, because {progress.why}")

    def _wait(self) -> None:
        """Wait a moment, and conclude the tasks whose processes have ended."""
        time.sleep(_POLL)
        for running in list(self._running):
            if running.process.poll() is not None:
                self._end(running)

    def _end(self, running: _Running) -> None:
        self._running.remove(running)
        if running.process.stdin is not None:
            running.process.stdin.close()
        self._free.insert(0, running.place)
        task, progress, code = running.task, self._of(running.task), running.process.returncode or 0
        progress.seconds += time.monotonic() - running.started
        label = f"{task.scene.name}: {task.name}"
        why = _reason(task, code, running.logged)
        if code == 0:
            try:
                record = task.finish(self._results[task.scene.name], progress.parts, _printed(task), progress.seconds)
            except (RunError, OSError) as error:
                code, why = 1, str(error)
            else:
                self._results[task.scene.name][task.name] = record.result
                progress.state = "done"
                self._tell(f"{label} done in {progress.seconds:.1f} s")
                return
        if code == LOST:
            progress.lost += 1
        if self._signal is not None:
            progress.state, progress.why = "failed", "it was stopped"
        elif code == LOST and progress.lost <= _MOST_LOST:
            progress.state, progress.why = "waiting", "its machine was lost"
            progress.attempts -= 1
            self._tell(f"{label}: {why} It is started again elsewhere (log: {task.log})")
        elif code in _NOT_RETRIED or progress.attempts > self._pipeline.retries:
            progress.state, progress.why = "failed", why
            self._tell(f"{label} failed: {why} (log: {task.log})")
        else:
            pause = self._pipeline.backoff * 2 ** (progress.attempts - 1)
            progress.state, progress.why, progress.not_before = "waiting", "it failed before", time.monotonic() + pause
            self._tell(f"{label} failed: {why}; it is tried again in {pause:g} s (log: {task.log})")

    def _stop(self) -> None:
        """End what still runs: first politely, so that a training run saves a checkpoint, then by force."""
        for running in self._running:
            running.process.terminate()
        deadline = time.monotonic() + _GRACE
        while self._running and time.monotonic() < deadline:
            self._wait()
        for running in list(self._running):
            running.process.kill()
            running.process.wait()
            self._end(running)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, _: object) -> None:
            if self._signal is None:
                self._tell("Stopping: running stages save their work.")
            self._signal = number

        try:
            earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            # Not on the main thread; the caller decides about signals.
            earlier = {}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def _launch(place: Place, words: list[str], folder: Path, log_file: Path) -> tuple[Process, int]:
    """Start a command, which prints to a file beside the log. Returns it, and where its part of the log begins."""
    printed_file = log_file.with_suffix(".out")
    parent = "stdin" if place.prefix else str(os.getpid())
    command = [sys.executable, "-m", "raymine.pipeline.child", parent, *words]
    with open(printed_file, "wb") as printed, open(log_file, "ab") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(words)}\n".encode(errors="replace"))
        log.flush()
        begins = os.fstat(log.fileno()).st_size
        if place.start is not None:
            return place.start(words, folder, printed_file, log_file), begins
        # In a session of its own, Ctrl-C reaches this process only, which then ends the others in good order.
        process = subprocess.Popen(
            [*place.prefix, *command],
            # On another host, the end of the input says that this process has ended.
            stdin=subprocess.PIPE if place.prefix else subprocess.DEVNULL,
            stdout=printed,
            stderr=log,
            cwd=folder,
            env={**os.environ, **place.environment},
            start_new_session=True,
        )
        return process, begins


def flags(task: Task) -> list[str]:
    """The options of a stage as flags."""
    options = task.scene.options.get(task.name, {})
    # The name of the exported file becomes a path in the folder of the scene, which the command has already.
    return words_of({name: value for name, value in options.items() if (task.name, name) != ("export", "to")})


def words_of(options: Mapping[str, JSON]) -> list[str]:
    """Options by name as flags of a command line. True is a switch; a list repeats its flag."""
    found: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, list) else [value]:
            found += [] if item is False else [flag] if item is True else [flag, str(item)]
    return found


def _remove(path: Path, folder: Path) -> None:
    """Remove what an interrupted attempt left, if it lies in our own folder."""
    if path.is_relative_to(folder) and path != folder and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)


def _printed(task: Task) -> JSON:
    try:
        return read_json(task.log.with_suffix(".out"))
    except UnreadableFile:
        return None


def _reason(task: Task, code: int, logged: int) -> str:
    """Why a stage failed: the last error line of this attempt, or its exit code in words.

    logged: bytes of the log that earlier attempts wrote.
    """
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}"
        return f"it was ended by signal {-code}"
    try:
        with open(task.log, "rb") as log:
            log.seek(logged)
            lines = log.read().decode(errors="replace").splitlines()[-200:]
    except OSError:
        lines = []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else f"exit code {code}"
