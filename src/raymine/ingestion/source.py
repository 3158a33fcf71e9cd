"""What the user gave: a folder of photos or a video. Which files are used, and why others are not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raymine.errors import SceneError
from raymine.files import UnreadableFile, file_digest
from raymine.scenes.images import IMAGE_SUFFIXES

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".3gp", ".mts", ".wmv"})
_HEIF = frozenset({".heic", ".heif", ".avif"})
_RAW = frozenset({".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"})
_SIDE = frozenset({".json", ".txt", ".xml", ".aae", ".xmp", ".md", ".csv", ".ini", ".db", ".html"})
"""Files that lie beside photos and are no photos; nothing is said about them."""
FEWEST = 3
"""Photos below which no scene is attempted."""


@dataclass(frozen=True)
class Skipped:
    """A file that is not used, and why, as a sentence that follows its name."""

    name: str
    why: str


@dataclass(frozen=True)
class Source:
    """The input. files: photos in the order of names, or one video. digest: of the content of all of them."""

    path: Path
    video: bool
    files: tuple[Path, ...]
    skipped: tuple[Skipped, ...]
    digest: str


def find_source(path: Path) -> Source:
    """List and hash the input. `SceneError` if there is nothing to work with."""
    if path.is_file():
        if path.suffix.lower() in IMAGE_SUFFIXES | _HEIF | _RAW:
            raise SceneError(f"{path} is a single photo.", hint="Give a folder with at least 3 photos, or a video.")
        if path.suffix.lower() not in VIDEO_SUFFIXES:
            raise SceneError(f"{path} is neither a folder of photos nor a video.", hint=_KNOWN)
        return Source(path, True, (path,), (), _digest_of(path, path.name))
    if not path.exists():
        raise SceneError(f"{path}: there is no such folder or file.", hint="Check the spelling.")
    if not path.is_dir():
        raise SceneError(f"{path} is neither a folder of photos nor a video.", hint=_KNOWN)
    return _photos_in(path)


_KNOWN = "Photos: JPEG, PNG, TIFF, WebP. Videos: MP4, MOV, MKV, AVI, WebM."


def _photos_in(path: Path) -> Source:
    try:
        entries = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        inner = path / "images"
        if not any(_is_photo(p) for p in entries) and inner.is_dir():
            path, entries = inner, sorted(p for p in inner.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise SceneError(f"{path} cannot be read: {error.strerror or error}.", hint="Check its permissions.") from error
    files, skipped, seen = list[Path](), list[Skipped](), dict[str, str]()
    for entry in entries:
        why = _unusable(entry)
        if why is None:
            content = _digest_of(entry)
            if content not in seen:
                seen[content] = entry.name
                files.append(entry)
                continue
            why = f"has the same content as {seen[content]}."
        if why:
            skipped.append(Skipped(entry.name, why))
    if len(files) < FEWEST:
        raise _too_few(path, files, skipped)
    text = "\n".join(f"{name} {content}" for content, name in seen.items())
    return Source(path, False, tuple(files), tuple(skipped), hashlib.sha256(text.encode(errors="replace")).hexdigest())


def _is_photo(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES | _HEIF | _RAW


def _unusable(path: Path) -> str | None:
    """Why a file is no photo that raymine reads; None if it is one, empty if nothing need be said."""
    suffix = path.suffix.lower()
    if suffix in _HEIF:
        return "is in a format that raymine does not read (HEIC, AVIF). Convert it to JPEG."
    if suffix in _RAW:
        return "is a raw photo, which raymine does not read. Export it as JPEG."
    if suffix in VIDEO_SUFFIXES:
        return "is a video. Give the video itself to use its frames."
    if suffix not in IMAGE_SUFFIXES:
        return "" if suffix in _SIDE else "is no photo that raymine knows."
    return None


def words_for(skipped: Sequence[Skipped]) -> str:
    """The first few files that are not used, each with its reason."""
    more = f" {len(skipped) - 3} more files are not used either." if len(skipped) > 3 else ""
    return " ".join(f"{each.name} {each.why}" for each in skipped[:3]) + more


def _too_few(path: Path, files: list[Path], skipped: list[Skipped]) -> SceneError:
    same = [each for each in skipped if "same content" in each.why]
    named = words_for(skipped)
    if not files:
        what = f"{path} holds no photo that can be used."
    elif len(files) == 1 and same:
        what = f"{path}: all {len(same) + 1} photos are the same picture."
    else:
        what = f"{path} holds {len(files)} photo{'s'[: len(files) != 1]}; at least {FEWEST} are needed to find poses."
    return SceneError(
        what, hint=f"Not used: {named}" if named else "Take 20 to 100 photos from all around (docs/ingest.md)."
    )


def _digest_of(path: Path, prefix: str = "") -> str:
    try:
        return file_digest(path, prefix.encode(errors="replace"))
    except UnreadableFile as error:
        # A photo that cannot be opened is reported when its pixels are read.
        if prefix:
            raise SceneError(f"{path} {error.what}") from error
        return hashlib.sha256(str(path).encode(errors="replace")).hexdigest()
