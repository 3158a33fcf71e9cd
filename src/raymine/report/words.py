"""The sentences of a report, in plain words, and numbers as text."""

from __future__ import annotations

import math
from pathlib import Path

from raymine.quantities import duration

from .record import RunRecord

PSNR = (
    "PSNR measures how far pixels are from the photo, in decibels: 10 dB more is a tenth of the squared error. SSIM "
    "compares local structure; 1 is equal."
)

HARD = (
    "Some training views, in grey. Colour shows where the samples are that hard mining chooses now: it grows with the "
    "gradient of the loss, summed over the samples of a pixel's ray. The hardest hundredth of the pixels is light "
    "yellow; what is grey is right already. Each picture has a scale of its own."
)

_POLICIES = {
    "hard": (
        "Each step looks at all samples along its rays, measures the gradient of the loss at each one, and trains on "
        "those with large gradients only (policy hard)."
    ),
    "prune": "Each step trains on the samples that are visible (policy prune).",
    "none": "Each step trains on every sample along its rays (policy none).",
}


def lead(run: RunRecord) -> list[str]:
    """Sentences about one run: what was trained on what, for how long, and how good it is."""
    manifest = run.manifest
    how = f"{manifest.step:,} steps, {duration(manifest.elapsed)} of training"
    wall = run.wall
    how += f" ({duration(wall)} of wall clock with loading and evaluations)" if wall is not None else ""
    images = f"{manifest.train_images} images of " if manifest.train_images else ""
    sentences = [
        f"The recipe {manifest.recipe} was trained on {images}the scene {scene_name(run)} on {device(run)}: {how}.",
        score(run),
    ]
    if run.status != "finished":
        sentences.insert(1, f"The run is not finished; its state is: {run.status}.")
    if manifest.error:
        sentences.insert(1, f"It ended with an error: {manifest.error}")
    return sentences


def score(run: RunRecord) -> str:
    """The score on the test views in a sentence, or how to get it."""
    scores = run.scores
    if scores is not None and scores.psnr is not None:
        many = "one test view" if len(scores.views) == 1 else f"{len(scores.views)} test views"
        ssim = "" if scores.ssim is None else f" and SSIM {scores.ssim:.4f}"
        words = f"On {many}, which it was not trained on, it has PSNR {scores.psnr:.2f} dB{ssim} on average."
        if scores.fitted_psnr is not None:
            words += f" After fitting the test views it has {scores.fitted_psnr:.2f} dB."
        if scores.stale:
            words += f" These scores are older than the latest checkpoint; refresh them with: raymine eval {run.path}"
        return words
    quick = run.manifest.test_psnr
    known = "" if quick is None else f"A quick evaluation of some pixels at the end has PSNR {quick:.2f} dB. "
    return f"{known}It has not been evaluated on all test views; do so with: raymine eval {run.path}"


def scored_on(run: RunRecord) -> str:
    """What `RunRecord.psnr` is of."""
    return "test views" if run.scores is not None else "some pixels of test views"


def mining(run: RunRecord) -> list[str]:
    """Sentences about which samples were trained on."""
    sentences = [_POLICIES.get(run.policy, f"The mining policy is {run.policy}.")] if run.policy else []
    whole, late = run.mean_share, run.share
    if whole is not None and late is not None:
        sentences.append(
            f"Over the whole run it trained on {percent(whole)} of the samples that it looked at, and on "
            f"{percent(late)} near the end."
        )
    _, _, tau = run.series("extra.tau")
    if len(tau):
        sentences.append(
            f"tau says how unevenly the gradient is spread over the samples: 1 is even. It went from {tau[0]:.1f} to "
            f"{tau[-1]:.1f}, so about one sample in {tau[-1]:.0f} is worth training on. b/B, the share that is trained "
            "on, follows 1 / tau within limits."
        )
    return sentences


def hardest(share: float) -> str:
    """How unevenly the gradient lies on a picture. share: that of its hardest tenth."""
    if not share:
        return "There is no gradient: the model shows exactly this photo."
    return f"{percent(share)} of the gradient is on the hardest tenth of the pixels."


def scene_name(run: RunRecord) -> str:
    scene = run.manifest.scene
    return scene if scene == "builtin" else Path(scene).name or scene


def device(run: RunRecord) -> str:
    return run.manifest.environment.device.partition(": ")[2] or run.manifest.environment.device


def percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%" if share < 0.1 else f"{100 * share:.0f}\u00a0%"


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"
