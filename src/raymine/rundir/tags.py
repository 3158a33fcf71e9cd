"""Tags of a run. They are kept in its folder, in `tags.json`, so that a rebuilt index has them again."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from raymine.errors import ConfigError
from raymine.files import UnreadableFile, read_json, write_json
from raymine.run_files import TAGS

_TAG = re.compile(r"[\w.+:-]{1,64}")


def read_tags(path: Path) -> tuple[str, ...]:
    """The tags of the run in `path`, sorted; none if there is no file of tags, or one that cannot be read."""
    try:
        found = read_json(path / TAGS)
    except UnreadableFile:
        return ()
    return tuple(sorted({tag for tag in found if isinstance(tag, str)})) if isinstance(found, list) else ()


def change_tags(path: Path, *, add: Collection[str] = (), remove: Collection[str] = ()) -> tuple[str, ...]:
    """Add and remove tags of a run, and return those that it has then. `ConfigError` for a name that is no tag."""
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise ConfigError(
                f"A tag has up to 64 letters, digits and . _ + : -, got `{tag[:80]}`.", hint="Choose another name."
            )
    tags = tuple(sorted({*read_tags(path), *add} - set(remove)))
    write_json(path / TAGS, list(tags), "write the tags")
    return tags
