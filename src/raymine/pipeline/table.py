"""The result of a pipeline as the table of a paper: scores, time and memory of each scene, and their mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raymine.files import JSON, read_object
from raymine.run_files import MANIFEST
from raymine.rundir.summary import protocol_of

from .stages import Result


@dataclass(frozen=True)
class SceneScore:
    """One line. protocol: its digest; protocol_sentence: what it means, or empty. train_seconds: of training alone.
    wall: of the whole command. memory: peak bytes of main memory, device_memory: of device memory; None where unknown.
    """

    scene: str
    recipe: str = ""
    psnr: float | None = None
    ssim: float | None = None
    lpips_alex: float | None = None
    lpips_vgg: float | None = None
    views: int = 0
    protocol: str = ""
    protocol_sentence: str = ""
    step: int = 0
    train_seconds: float | None = None
    wall: float | None = None
    memory: int | None = None
    device_memory: int | None = None
    device: str = ""
    run: str = ""


def scores(results: dict[str, dict[str, Result]]) -> list[SceneScore]:
    """One line for each scene, with what is known of it."""
    return [_score(scene, stages) for scene, stages in results.items()]


def mean(lines: list[SceneScore]) -> SceneScore:
    """The mean over scenes of what every scene has; None of what one of them lacks."""

    def of(name: str) -> float | None:
        values = [getattr(line, name) for line in lines]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    protocols = {line.protocol for line in lines}
    return SceneScore(
        "mean",
        psnr=of("psnr"),
        ssim=of("ssim"),
        lpips_alex=of("lpips_alex"),
        lpips_vgg=of("lpips_vgg"),
        protocol=protocols.pop() if len(protocols) == 1 else "several",
        train_seconds=of("train_seconds"),
        wall=of("wall"),
        memory=max((line.memory for line in lines if line.memory), default=None),
        device_memory=max((line.device_memory for line in lines if line.device_memory), default=None),
    )


def _score(scene: str, stages: dict[str, Result]) -> SceneScore:
    run = stages.get("train", {}).get("run")
    manifest = read_object(Path(run) / MANIFEST) if run else {}
    attempts = [attempt for attempt in manifest.get("attempts", []) if isinstance(attempt, dict)]
    found = stages.get("eval", {})
    protocol = found.get("protocol")
    return SceneScore(
        scene,
        recipe=manifest.get("recipe", ""),
        psnr=found.get("psnr"),
        ssim=found.get("ssim"),
        lpips_alex=found.get("lpips_alex"),
        lpips_vgg=found.get("lpips_vgg"),
        views=found.get("count") or 0,
        protocol=protocol_of(found) if found else "",
        protocol_sentence=str(protocol.get("sentence", "")) if isinstance(protocol, dict) else "",
        step=manifest.get("step", 0),
        train_seconds=manifest.get("elapsed"),
        wall=_total(attempts, "wall"),
        memory=max((a["peak_memory"] for a in attempts if a.get("peak_memory")), default=None),
        device_memory=max((a["peak_device_memory"] for a in attempts if a.get("peak_device_memory")), default=None),
        device=(attempts[-1].get("environment") or {}).get("device", "") if attempts else "",
        run=str(run or ""),
    )


def _total(attempts: list[JSON], name: str) -> float | None:
    values = [attempt[name] for attempt in attempts if isinstance(attempt.get(name), int | float)]
    return sum(values) if values else None
