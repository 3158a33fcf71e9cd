"""The guard of a run: it watches for training images that cannot be learnt, and names them at the end.

It changes nothing in training. It looks at the moments of the quick evaluations, outside the training clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from raymine.contracts import Renderer
from raymine.errors import option
from raymine.evaluate.hard_images import ImageErrors
from raymine.quantities import listing

Looks = list[tuple[float, ...]]
"""Errors of every training image at the first look and at the latest ones, as the loop keeps and saves them."""

_MOST_NAMES = 20


class ImageGuard:
    """Looks at the training images and names those that stay hard. names: one for each image, in their order."""

    def __init__(self, errors: ImageErrors, names: Sequence[str], renderer: Callable[[], Renderer]) -> None:
        self._errors, self._names, self._renderer = errors, tuple(names), renderer

    def look(self, looks: Looks) -> Looks:
        """`looks` with one more. Only the first and the latest are ever compared, so these are kept."""
        return [*looks[:1], self._errors.look(self._renderer())]

    def hard_images(self, looks: Looks) -> tuple[str, ...]:
        """Names of the images that stay hard while the others improve, hardest first. Call it after the last look."""
        if len(looks) < 2 or any(len(look) != len(self._names) for look in looks):
            return ()
        return tuple(self._names[i] for i in self._errors.hard_images(looks, self._renderer()))

    def warning(self, hard: Sequence[str], run: Path) -> str:
        """The warning about these images, in words."""
        one = len(hard) == 1
        listed = listing(hard, _MOST_NAMES)
        stays, its = ("stays", "Its pose is") if one else ("stay", "Their poses are")
        them = "it" if one else "them"
        return (
            f"{len(hard)} of {len(self._names)} images {stays} hard while the others improve: {listed}. {its} probably "
            f"wrong, or something moved. Evaluate the split `train` of {run} to see {them}, or leave {them} out "
            f"with {leave_out_option(hard[:_MOST_NAMES])}."
        )


def leave_out_option(names: Sequence[str]) -> str:
    """How to leave these images out, for the caller's spelling: a flag for each, or a Python argument."""
    if option("leave_out").startswith("--"):
        return " ".join(option("leave_out", shlex.quote(name)) for name in names)
    return option("leave_out", list(names))
