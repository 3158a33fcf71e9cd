"""Updates the manifest of a run while it trains."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from raymine.errors import RaymineError, ResourceError
from raymine.machine import peak_memory
from raymine.rundir import Attempt, Environment, Manifest, RunDir
from raymine.rundir.manifest import Status, utc_now

from ..saved.loopstate import LoopState
from ..stopwatch import Stopwatch


class ManifestWriter:
    """Keeps `manifest.json` up to date: which process trains the run, its progress, and how it ended."""

    def __init__(self, run: RunDir, command: tuple[str, ...], watch: Stopwatch) -> None:
        self._run = run
        self._command = command
        self._watch = watch
        self._manifest = run.read_manifest()

    def begin(self, step: int, loop: LoopState, environment: Environment, processes: int = 1) -> None:
        """Record that this process starts to train from `step`, as the first of `processes`."""
        attempt = Attempt(self._command, os.getpid(), step, utc_now(), environment, processes=processes)
        attempts = (*self._manifest.attempts, attempt)
        resumed = self._with_progress(step, loop)
        self._write(replace(resumed, status="running", ended=None, error=None, attempts=attempts))

    def update(self, step: int, loop: LoopState) -> None:
        """Record the progress at `step`."""
        self._write(self._with_progress(step, loop))

    def end(self, status: Status, step: int, loop: LoopState, hard_images: tuple[str, ...] = ()) -> None:
        """Record that the run has ended without an error, and which images stayed hard."""
        ended = replace(self._with_progress(step, loop), status=status, hard_images=hard_images)
        self._write(self._ended(ended))

    def fail(self, error: BaseException) -> None:
        """Record a failure. If the manifest cannot be written, the original error is the one to report."""
        words = error.message if isinstance(error, RaymineError) else f"{type(error).__name__}: {error}"
        status: Status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            self._write(self._ended(replace(self._manifest, status=status, error=words)))
        except ResourceError:
            return

    def _with_progress(self, step: int, loop: LoopState) -> Manifest:
        scores = loop.scores(step)
        return replace(
            self._manifest,
            step=step,
            elapsed=loop.elapsed,
            train_psnr=scores.train_psnr,
            test_psnr=scores.test_psnr,
            held_out_psnr=scores.held_out_psnr,
            quick_protocol=scores.quick_protocol,
            best_step=scores.best_step,
            best_held_out_psnr=scores.best_held_out_psnr,
            horizons=tuple(loop.horizons),
            rollbacks=tuple(loop.rollbacks),
        )

    def _ended(self, manifest: Manifest) -> Manifest:
        moment = utc_now()
        watch = self._watch
        stages = {name: round(seconds, 3) for name, seconds in watch.stages().items()}
        first = None if watch.first_step is None else round(watch.first_step, 3)
        closed = tuple(
            replace(
                attempt,
                ended=moment,
                wall=round(watch.wall, 3),
                first_step=first,
                stages=stages,
                peak_memory=peak_memory(),
                peak_device_memory=torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None,
            )
            for attempt in manifest.attempts[-1:]
        )
        return replace(manifest, ended=moment, attempts=manifest.attempts[:-1] + closed)

    def _write(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._run.write_manifest(manifest)
