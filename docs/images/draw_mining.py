"""Draws the pictures of docs/mining.md: a training of the built-in scene, looked at while it runs.

python docs/images/draw_mining.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch

mpl.use("svg")
import matplotlib.pyplot as plt

from raymine import recipes
from raymine.bench.probe import Probe, batch_gradients, next_batch, probe
from raymine.bench.records import RayDetail
from raymine.bench.snapshots import write_pictures
from raymine.engines import engine_for
from raymine.experiment import open_data
from raymine.scenes import load_scene
from raymine.step import create_state

HERE = Path(__file__).parent
INK, BLUE, ORANGE, GREEN, GREY = "#333333", "#2a6fbb", "#d9822b", "#2f8f5b", "#bbbbbb"
LOOKS = {20: GREEN, 100: ORANGE, 600: BLUE}
mpl.rcParams.update({"svg.hashsalt": "raymine", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


class Look(NamedTuple):
    """One batch of a step. size [B]: norms of the gradients of its samples."""

    step: int
    size: np.ndarray
    probe: Probe


class Watched(NamedTuple):
    looks: list[Look]
    tau: list[float]
    share: list[float]


def watch(folder: Path) -> Watched:
    """Train `ngp` on the built-in scene at half its size; look at some steps; write pictures of a test view."""
    scene, device = load_scene("builtin", downscale=2), torch.device("cpu")
    config = recipes.build("ngp", scene, "cpu")
    watched = Watched([], [], [])
    with (
        open_data(scene, scene.of_split("train"), device, None) as seen,
        open_data(scene, scene.of_split("test")[3:4], device, None) as unseen,
    ):
        state = create_state(config, seen.train, seed=0, device=device)
        state.horizon = max(LOOKS)
        engine = engine_for(state, seen.train)
        for step in LOOKS:
            while state.step < step:
                (report,) = engine.advance(1)
                watched.tau.append(report.extra["tau"])
                watched.share.append(report.trained / report.marched)
            found, _ = batch_gradients(state, next_batch(state, seen.train), faint=0.0)
            watched.looks.append(Look(step, found.size.double().numpy(), probe(state, seen.train)))
        write_pictures(state, unseen.train, folder, "hard")
    return watched


def save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def distribution(looks: list[Look]) -> None:
    """How unequal the norms are: their histogram, and which share of the samples has which share of the sum."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.8))
    for look in looks:
        size = np.sort(look.size)[::-1]
        size = size[size > 0]
        bins = np.logspace(-7, 3, 61)
        left.hist(size / size.mean(), bins, histtype="step", color=LOOKS[look.step], label=f"step {look.step}")
        share = np.arange(1, len(size) + 1) / len(look.size)
        right.plot(share, size.cumsum() / size.sum(), color=LOOKS[look.step], label=f"step {look.step}")
        print(f"step {look.step}: {probe_line(look)}")
    left.set(xscale="log", xlabel="norm of a sample's gradient / mean", ylabel="samples")
    left.legend(frameon=False, loc="upper left")
    right.plot(np.logspace(-4, 0), np.logspace(-4, 0), color=GREY, lw=0.8, label="all equal")
    right.set(xscale="log", xlim=(1e-4, 1), ylim=(0, 1.02), xlabel="share of the samples, hardest first")
    right.set_ylabel("share of the sum of norms")
    right.legend(frameon=False, loc="upper left")
    save(figure, "mining_distribution")


def probe_line(look: Look) -> str:
    """What docs/mining.md says in numbers."""
    found, size = look.probe.diagnosis, np.sort(look.size)[::-1]
    few = [float(size[: int(part * len(size))].sum() / size.sum()) for part in (0.01, 0.1)]
    return (
        f"{len(size)} samples, hardest 1 % hold {few[0]:.2f} and 10 % {few[1]:.2f} of the sum, tau {found.tau:.2f}, "
        f"trains on {found.share_samples:.3f} that hold {found.share_gradient:.2f}; chosen of surface "
        f"{found.surface.chosen}/{found.surface.all}, empty {found.empty.chosen}/{found.empty.all}, "
        f"occluded {found.occluded.chosen}/{found.occluded.all}"
    )


def along_a_ray(ray: RayDetail) -> None:
    """One ray: where its weights are, where its gradients are, and which samples are trained on."""
    figure, axes = plt.subplots(figsize=(7.4, 2.4))
    t, weight, size = np.array(ray.t), np.array(ray.weight), np.array(ray.gradient)
    axes.fill_between(t, weight / weight.max(), step="mid", color="#dddddd", label="rendering weight (scaled)")
    axes.vlines(t, 0, size / size.max(), color=BLUE, lw=1, label="norm of the gradient (scaled)")
    chosen = np.array(ray.chosen)
    axes.plot(t[chosen], np.full(chosen.sum(), -0.06), "|", color=ORANGE, ms=8, label="trained on", clip_on=False)
    axes.set(xlabel="distance along the ray", ylim=(-0.12, 1.05), yticks=())
    axes.legend(frameon=False, loc="upper right")
    save(figure, "mining_ray")


def over_steps(watched: Watched) -> None:
    """tau of each step, its running average, and the share of the samples that are trained on."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.5))
    step, average, alpha = np.arange(1, len(watched.tau) + 1), [], 1 / 60
    for tau in watched.tau:
        average.append((1 - alpha) * (average[-1] if average else 1.0) + alpha * tau)
    left.plot(step, watched.tau, color=GREY, lw=0.7, label="tau of the step")
    left.plot(step, average, color=BLUE, label="running average")
    left.set(xlabel="step", ylabel="tau", ylim=(0, None))
    left.legend(frameon=False, loc="lower right")
    right.plot(step, watched.share, color=ORANGE, lw=0.9)
    right.set(xlabel="step", ylabel="share trained on", ylim=(0, None))
    save(figure, "mining_steps")


def where(folder: Path) -> None:
    """A test view: the truth, what the model shows, its error, and where its gradients are."""
    names = {"truth": "true", "hard-predicted": "predicted", "hard-error": "error", "hard-hard": "hardness"}
    tiles = [plt.imread(folder / "pictures" / f"{name}.png") for name in names]
    figure, panels = plt.subplots(1, 4, figsize=(7.4, 2.1))
    for panel, tile, name in zip(panels, tiles, names.values(), strict=True):
        panel.imshow(tile)
        panel.set_title(name)
        panel.axis("off")
    save(figure, "mining_pixels")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        seen = watch(Path(name))
        distribution(seen.looks)
        ray = seen.looks[-1].probe.ray
        assert ray is not None
        along_a_ray(ray)
        over_steps(seen)
        where(Path(name))
