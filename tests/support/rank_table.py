"""Prints how far a run of two processes is from that of one: a line of Markdown for each case of `rank_steps`.

Run as: PYTHONPATH=tests python -m support.rank_table [STEPS], 50 if not given.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from support.rank_steps import Seen, launch


def gradient_deviation(one: Seen, two: Seen) -> float:
    """Of the first step: the largest difference in a parameter, as a share of its largest gradient."""
    pairs = [(gradient, two.gradients[name]) for name, gradient in one.gradients.items()]
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-8)) for a, b in pairs)


def loss_deviation(one: Seen, two: Seen) -> float:
    """The largest relative difference of the loss over all steps."""
    return max(abs(b.loss / a.loss - 1) for a, b in zip(one.reports, two.reports, strict=True))


def same_choice(one: Seen, two: Seen) -> str:
    """Whether both chose the same samples in the first step; "-" without mining."""
    if not len(one.chosen):
        return "-"
    return "yes" if torch.equal(one.chosen.sort().values, two.chosen.sort().values) else "no"


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        one, two = (launch(Path(folder), world, steps=steps) for world in (1, 2))
    print(f"| case | gradients, step 1 | loss, {steps} steps | same samples chosen, step 1 |\n|---|---|---|---|")
    for name in one:
        pair = one[name], two[name]
        print(f"| {name} | {gradient_deviation(*pair):.1e} | {loss_deviation(*pair):.1e} | {same_choice(*pair)} |")


if __name__ == "__main__":
    main()
