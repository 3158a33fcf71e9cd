"""`raymine ingest`: photos or a video to a scene with poses."""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from .. import output


@dataclass(frozen=True)
class Ingest:
    """Compute the poses of photos, or of frames of a video, and write a scene that `raymine train` takes. If it is
    stopped, the same command continues."""

    photos: tyro.conf.Positional[Path]
    """Folder of photos, or a video."""
    out: Path
    """Scene folder to write. It must not exist."""
    frames: int = 60
    """Pictures to take from a video: the sharpest one of each of so many stretches."""
    matching: Literal["auto", "exhaustive", "sequential"] = "auto"
    """Compare every photo with every other (`exhaustive`), or with those that follow it by name (`sequential`). `auto`:
    exhaustive up to 120 photos or 60 frames."""
    mapper: Literal["incremental", "global"] = "incremental"
    """How poses are computed: one photo after the other, or all at once, which is faster for hundreds of photos."""
    features: Literal["robust", "fast"] = "robust"
    """`robust` features match photos from farther apart; `fast` ones take half the time."""
    lens: Literal["auto", "pinhole", "simple-radial", "opencv", "fisheye"] = "auto"
    """Lens model to fit. `auto` is simple-radial, one coefficient of distortion; opencv has four, for wide lenses."""
    undistort: bool = False
    """Write the photos without lens distortion, for programs that expect a pinhole camera. raymine needs it not."""
    feature_size: int = 2000
    """Longer side in pixels at which features are searched. The scene keeps the full size."""
    threads: int = 0
    """Threads; 0 uses all cores."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        started = time.perf_counter()
        from raymine.ingestion import IngestConfig, ingest

        config = IngestConfig(
            frames=self.frames,
            matching=self.matching,
            mapper=self.mapper,
            features=self.features,
            lens=self.lens,
            undistort=self.undistort,
            feature_size=self.feature_size,
            threads=self.threads,
        )
        try:
            made = ingest(self.photos, self.out, config, listener=Told())
        except KeyboardInterrupt:
            output.say("The same command continues with the stage that was not finished.")
            raise
        if self.json:
            output.emit_json(made.to_json())
        else:
            words = "was finished before" if made.again else "is written"
            share = f"{made.registered} of {len(made.verdicts)} photos have a pose"
            output.results().print(
                f"{self.out} {words}: {share}; {made.points} points, {made.error:.2f} pixels mean error.",
                markup=False,
                soft_wrap=True,
            )
        output.say(f"What became of each photo: {self.out / 'ingest.html'}")
        output.say(f"Next: raymine train {shlex.quote(str(self.out))}")
        if not made.again:
            total = time.perf_counter() - started
            output.say(
                f"Took {output.duration(total)}. Stages: "
                + ", ".join(f"{name} {output.duration(seconds)}" for name, seconds in made.seconds.items())
                + "."
            )
        return 0


class Told:
    """Shows stages as progress bars, and prints what is worth knowing."""

    def __init__(self) -> None:
        self._shown = ExitStack()

    def stage(self, words: str) -> output.Callback:
        return self._shown.enter_context(output.progress_bar(words))

    def ended(self) -> None:
        self._shown.close()

    def say(self, sentence: str) -> None:
        output.say(sentence)

    def warn(self, sentence: str) -> None:
        output.warn(sentence)
