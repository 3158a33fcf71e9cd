"""The choice of an image folder if a scene has several sizes: `images`, `images_2`, `images_4`, ..."""

from __future__ import annotations

from pathlib import Path

from raymine.scenes.images import images_in
from raymine.scenes.parsed import Parsed

_FULL_SIZE = ("images", "input", "rgb")
_SMALLER = (2, 4, 8, 16)


def image_folders(root: Path) -> dict[int, Path]:
    """Folders with images, by their downscale factor: 1 for full size, 2 for `images_2`, and so on."""
    folders = {n: root / f"images_{n}" for n in _SMALLER}
    full = next((root / name for name in _FULL_SIZE if images_in(root / name)), None)
    found = {n: folder for n, folder in folders.items() if images_in(folder)}
    return found if full is None else {1: full, **found}


def choose_folder(root: Path, downscale: int, parsed: Parsed) -> Path | None:
    """The best image folder for this downscale; None if there is no folder with images.

    A folder for exactly this factor is used if it is complete. Otherwise the folder with the largest images is used,
    which may be `images_8` if there is no other. The choice is recorded in `parsed`.
    """
    folders = image_folders(root)
    if not folders:
        return None
    factor = min(folders)
    if downscale > 1 and downscale in folders:
        smaller = folders[downscale]
        count, whole = len(images_in(smaller)), len(images_in(folders[factor]))
        if count >= whole:
            parsed.premade = downscale
            parsed.decisions.append(f"Images: {smaller.name}, already smaller by {downscale}.")
            return smaller
        parsed.warn(
            smaller.name,
            f"has {count} of {whole} images, so those of {folders[factor].name} are divided by {downscale} instead. "
            "Scores are not comparable with those of the folder.",
            "Restore its missing images.",
            "missing-image",
        )
    if factor > 1:
        parsed.decisions.append(f"Images: {folders[factor].name}, the largest that are there; the full size is not.")
    return folders[factor]


def choose_images(root: Path, downscale: int, parsed: Parsed) -> list[Path]:
    """The images of the chosen folder, ordered by name. If there is no folder, records a problem and returns []."""
    folder = choose_folder(root, downscale, parsed)
    if folder is None:
        parsed.error("images", "no folder with images was found.", "Put the images into `images`.", "missing-image")
        return []
    return images_in(folder)
