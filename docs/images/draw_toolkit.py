"""Draws the pictures of docs/toolkit from the toolkit itself.

python docs/images/draw_toolkit.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("svg")
import matplotlib.pyplot as plt

from raymine.toolkit import contraction, importance, volume

HERE = Path(__file__).parent
INK, BLUE, ORANGE, GREEN = "#333333", "#2a6fbb", "#d9822b", "#2f8f5b"
mpl.rcParams.update({"svg.hashsalt": "raymine", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def rendering() -> None:
    """A haze and a surface along one ray: density, transmittance, weights."""
    edges = torch.linspace(0, 4, 81)
    start, end, middle = edges[:-1], edges[1:], (edges[:-1] + edges[1:]) / 2
    density = 0.5 * torch.exp(-((middle - 1.2) ** 2) / 0.15) + 14 * torch.exp(-((middle - 2.6) ** 2) / 0.02)
    found = volume.weights_from_density(start, end, density)
    figure, axes = plt.subplots(figsize=(7, 2.6))
    axes.fill_between(middle, density / 14, step="mid", color="#dddddd", label="density s (scaled)")
    axes.step(middle, found.transmittance, where="mid", color=BLUE, label="transmittance T")
    axes.bar(middle, found.weights, width=0.045, color=ORANGE, label="weight w")
    axes.axhline(1e-4, color=INK, lw=0.5)
    axes.set(xlabel="distance along the ray", xlim=(0, 4), ylim=(0, 1.05))
    axes.legend(frameon=False, loc="upper right")
    save(figure, "volume")


def resampling() -> None:
    """Equal shares of a CDF become intervals of a ray."""
    edges = torch.linspace(0, 1, 17)
    mass = torch.exp(-((edges[:-1] + 1 / 32 - 0.62) ** 2) / 0.01) + 0.04
    cdf = torch.cat((torch.zeros(1), mass.cumsum(0))) / mass.sum()
    found = importance.importance_samples(edges[None], cdf[None], 10)
    share = (torch.arange(10) + 0.5) / 10
    figure, axes = plt.subplots(figsize=(7, 2.8))
    axes.plot(edges, cdf, color=BLUE, marker=".", label="CDF at the edges")
    for u, x in zip(share, found.samples[0], strict=True):
        axes.plot([0, x, x], [u, u, 0], color="#bbbbbb", lw=0.7)
    axes.plot(found.samples[0], torch.zeros(10), "o", color=ORANGE, clip_on=False, label="samples")
    axes.plot(found.edges[0], torch.full((11,), -0.06), "|", color=GREEN, ms=9, clip_on=False, label="new edges")
    axes.set(xlabel="distance along the ray", ylabel="share", xlim=(0, 1), ylim=(-0.1, 1.02))
    axes.legend(loc="upper left", framealpha=1, edgecolor="white")
    save(figure, "importance")


def squashing() -> None:
    """A grid that reaches far out, contracted by either norm."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 3.4))
    lines = [*torch.linspace(-1, 1, 9).tolist(), *[sign * 2.0**k for k in range(1, 5) for sign in (-1, 1)]]
    along = torch.cat((-torch.logspace(2.5, -2, 300), torch.logspace(-2, 2.5, 300)))
    for panel, norm in zip(panels, ("inf", "l2"), strict=True):
        for value in lines:
            inside = abs(value) <= 1
            for order in ((0, 1), (1, 0)):
                points = torch.stack((along, torch.full_like(along, value), torch.zeros_like(along)), 1)
                squashed = contraction.contract(points, norm)[:, list(order)]
                panel.plot(*squashed.T, color=BLUE if inside else "#9bb8d9", lw=0.7)
        box = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
        if norm == "inf":
            panel.plot(*box.T, color=ORANGE)
        else:
            panel.add_patch(plt.Circle((0, 0), 1, fill=False, color=ORANGE, lw=1.5))
        panel.set(title=f'norm="{norm}"', xlim=(-2.05, 2.05), ylim=(-2.05, 2.05), aspect="equal")
    save(figure, "contraction")


if __name__ == "__main__":
    rendering()
    resampling()
    squashing()
