"""The assignment of frames to training and test splits."""

from __future__ import annotations

from collections.abc import Sequence

from raymine.contracts import Split
from raymine.errors import ConfigError

from .parsed import RawFrame

EVERY = 8
"""Default interval of held-out images."""


def holdout_interval(split: str | None) -> int | None:
    """Parses the option `split`: None for the split of the files, 0 to hold out nothing, N for every Nth image."""
    if split is None or split == "auto":
        return None
    if split == "all":
        return 0
    kind, _, number = split.partition(":")
    if kind == "every" and number.isdigit() and int(number) >= 2:
        return int(number)
    raise ConfigError(
        f"`split` must be auto, all or every:N with N at least 2; it is {split!r}.",
        hint="For instance every:8 holds out every 8th image.",
    )


def assign_splits(frames: Sequence[RawFrame], own_split: bool, interval: int | None) -> tuple[list[Split], str]:
    """The split of each frame, and a sentence that explains it. frames: the usable frames.

    own_split: whether the files have a split. interval: the result of `holdout_interval`. Without a split in the files,
    every 8th image is held out, ordered by name and starting with the first. A single frame is always for training.
    """
    if interval is None and own_split:
        splits: list[Split] = [f.split or "train" for f in frames]
        if "test" not in splits and "val" in splits:
            splits = ["test" if s == "val" else s for s in splits]
            counts = f"{splits.count('train')} train, {splits.count('test')} test"
            return splits, f"Split: as the files have it, with val as test because there is no test: {counts}."
        counts = ", ".join(f"{splits.count(s)} {s}" for s in ("train", "val", "test") if s in splits)
        return splits, f"Split: as the files have it, {counts}."
    if interval == 0 or len(frames) < 2:
        return ["train"] * len(frames), f"Split: all {len(frames)} frames are for training, none is held out."
    interval = interval or EVERY
    order = sorted(range(len(frames)), key=lambda i: frames[i].name)
    held_out = set(order[::interval])
    splits = ["test" if i in held_out else "train" for i in range(len(frames))]
    train = len(frames) - len(held_out)
    return splits, (
        f"Split: every {interval}th image by name, starting with the first, is held out: "
        f"{train} train, {len(held_out)} test."
    )
