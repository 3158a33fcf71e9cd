"""What differs between two runs: settings, scores, scene, images, software and hardware. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raymine.files import JSON, flattened, read_object
from raymine.run_files import CONFIG, IMAGES, MANIFEST

from .summary import RunSummary, summarise_run

_NAMED = 5
"""Images that are named one by one; of more, the number is told."""
_SOURCE = "code (source files)"
_NOT_SETTINGS = ("schema", "earlier_digests")
_SCORES = (
    "status",
    "step",
    "elapsed",
    "train_psnr",
    "test_psnr",
    "held_out_psnr",
    "eval_psnr",
    "eval_ssim",
    "protocol",
)


@dataclass(frozen=True)
class Difference:
    """One setting, score or fact of two runs. `same` if both have the same value."""

    what: str
    first: JSON
    second: JSON

    @property
    def same(self) -> bool:
        return bool(self.first == self.second)


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side. settings: every setting, those that differ first. origins: only what differs."""

    first: RunSummary
    second: RunSummary
    settings: tuple[Difference, ...]
    scores: tuple[Difference, ...]
    origins: tuple[Difference, ...]


def compare_runs(first: Path, second: Path) -> Comparison:
    """Compare two run folders. What cannot be read of one of them counts as absent."""
    a, b = summarise_run(first), summarise_run(second)
    settings = _differences(_settings(first), _settings(second))
    scores = tuple(Difference(name, getattr(a, name), getattr(b, name)) for name in _SCORES)
    ordered = sorted(settings, key=lambda each: (each.same, each.what))
    return Comparison(a, b, tuple(ordered), scores, origins(first, second))


def origins(first: Path, second: Path) -> tuple[Difference, ...]:
    """What differs in code, packages, device, threads, scene and images, one entry each; () if nothing does."""
    found = [each for each in _differences(_origin(first), _origin(second)) if not each.same]
    # Runs of earlier versions have no digest of the source files. That it is unknown is no difference.
    found = [each for each in found if each.what != _SOURCE or None not in (each.first, each.second)]
    recorded = _images(first), _images(second)
    images = [each for each in _differences(*recorded) if not each.same]
    if len(images) > _NAMED:
        counts = [f"{len(each)} images" for each in recorded]
        images = [Difference(f"{len(images)} images, {images[0].what.removeprefix('image ')} first", *counts)]
    return (*found, *images)


def _differences(a: dict[str, JSON], b: dict[str, JSON]) -> list[Difference]:
    return [Difference(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b))]


def _settings(path: Path) -> dict[str, JSON]:
    data = read_object(path / CONFIG)
    return flattened({key: value for key, value in data.items() if key not in _NOT_SETTINGS})


def _origin(path: Path) -> dict[str, JSON]:
    """Where a run came from: the environment of its last attempt, its seed, and digests of scene and images."""
    data = read_object(path / MANIFEST)
    attempts = data.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else {}
    environment = last.get("environment") or data.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    packages = environment.get("packages")
    return {
        "raymine": environment.get("raymine"),
        "code (commit)": environment.get("commit"),
        _SOURCE: environment.get("source"),
        "python": environment.get("python"),
        "platform": environment.get("platform"),
        **{f"package {name}": found for name, found in (packages if isinstance(packages, dict) else {}).items()},
        "device": environment.get("device"),
        "threads": environment.get("threads"),
        "processes": last.get("processes", 1),
        "seed": data.get("seed"),
        "scene (digest)": data.get("scene_digest"),
        "images (digest)": data.get("image_digest"),
    }


def _images(path: Path) -> dict[str, JSON]:
    """The digest of every training image, where the run recorded them."""
    return {f"image {name}": digest for name, digest in read_object(path / IMAGES).items()}
