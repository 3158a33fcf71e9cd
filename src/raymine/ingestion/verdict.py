"""Why a photo has no pose, and what would help: judged from its pixels, its features and its matches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .photos import Photo

BLURRED = 0.35
"""A photo is called blurred if its sharpness is below this share of the median."""
FEW_FEATURES = 300
MATCHED = 30
"""Inlier matches that make two photos neighbours: COLMAP needs about that many to compute a pose."""
DARK, BRIGHT = 25.0, 235.0


@dataclass(frozen=True)
class Verdict:
    """What became of a photo. points: scene points that it sees, 0 without a pose. neighbours: photos that match it.

    why: sentences, empty for a photo that has a pose and no fault. hints: what to do about it.
    """

    photo: Photo
    registered: bool
    points: int
    features: int
    neighbours: int
    why: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    photos: Sequence[Photo],
    features: Mapping[str, int],
    pairs: Sequence[tuple[str, str, int]],
    models: Sequence[Mapping[str, Any]],
) -> list[Verdict]:
    """A verdict for each photo. pairs: names of two photos and their inlier matches. models: largest first."""
    neighbours = {photo.name: 0 for photo in photos}
    for first, second, inliers in pairs:
        if inliers >= MATCHED:
            neighbours[first] += 1
            neighbours[second] += 1
    usual = statistics.median(photo.sharpness for photo in photos)
    kept: Mapping[str, int] = models[0]["images"] if models else {}
    verdicts = []
    for photo in photos:
        found = photo.name in kept
        reasons = _faults(photo, features.get(photo.name, 0), usual)
        if not found:
            reasons += _match_faults(photo.name, neighbours[photo.name], models)
        verdicts.append(
            Verdict(
                photo,
                found,
                int(kept.get(photo.name, 0)),
                features.get(photo.name, 0),
                neighbours[photo.name],
                tuple(why for why, _ in reasons),
                tuple(dict.fromkeys(hint for _, hint in reasons)),
            )
        )
    return verdicts


def _faults(photo: Photo, features: int, usual: float) -> list[tuple[str, str]]:
    """Faults of the picture itself, with what helps."""
    found = []
    if photo.sharpness < BLURRED * usual:
        share = photo.sharpness / usual
        found.append((f"It is blurred: {share:.0%} of the usual sharpness.", "Hold still, or use more light."))
    if photo.brightness < DARK:
        found.append(("It is very dark.", "Expose longer."))
    if photo.brightness > BRIGHT:
        found.append(("It is overexposed.", "Expose less."))
    if features < FEW_FEATURES:
        found.append(
            (f"It shows little texture: {features} features.", "Have something with texture in every picture.")
        )
    return found


def _match_faults(name: str, neighbours: int, models: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Why the pictures together gave this one no pose."""
    for number, model in enumerate(models[1:], start=2):
        if name in model["images"]:
            count = len(model["images"])
            return [
                (
                    f"It fits a separate group of {count} photos (group {number}), which nothing joins to the scene.",
                    "Take photos between the two groups.",
                )
            ]
    if neighbours == 0:
        return [
            (
                "No other photo shows enough of the same: too little overlap.",
                "Take photos closer together: neighbours should share two thirds of the picture.",
            )
        ]
    if neighbours < 3:
        others = "one other photo shows" if neighbours == 1 else "two other photos show"
        return [(f"Only {others} enough of the same.", "Take more photos near this one.")]
    return [("Its matches contradict the other photos.", "Something may have moved, or look alike in several places.")]


def advice(verdicts: Sequence[Verdict], groups: int) -> list[str]:
    """What to do next, for the whole capture: most useful first."""
    missing = [verdict for verdict in verdicts if not verdict.registered]
    if not missing and groups <= 1:
        return ["Every photo has a pose."]
    said = []
    if groups > 1:
        said.append(f"The photos fall into {groups} groups; the largest is the scene. Take photos between them.")
    counts: dict[str, int] = {}
    for verdict in missing:
        for hint in verdict.hints:
            counts[hint] = counts.get(hint, 0) + 1
    for hint, count in sorted(counts.items(), key=lambda item: -item[1]):
        said.append(f"{hint} ({count} photo{'s'[: count != 1]})")
    if len(missing) > len(verdicts) / 3:
        said.append("More than a third of the photos have no pose: a new capture is worth it (docs/ingest.md).")
    return said
