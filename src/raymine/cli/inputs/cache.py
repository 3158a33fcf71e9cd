"""`raymine cache`: what is cached, and how to drop it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from raymine.errors import ConfigError

from .. import output

if TYPE_CHECKING:
    from raymine.caches import CacheEntry


@dataclass(frozen=True)
class Cache:
    """List what raymine has cached (image packs, the built-in scene, compiled kernels), and drop it. What is dropped is
    made again when it is needed; what is in use is never dropped."""

    drop: str | None = None
    """Drop the entry of this name, or `all` entries that belong to raymine alone."""
    budget: str | None = None
    """Drop image packs and scenes, the least recently used first, until they take at most this, such as 20GB."""
    json: bool = False
    """Print one JSON document on stdout."""

    def execute(self) -> int:
        from raymine.caches import drop, evict, list_cache, parse_size
        from raymine.files import cache_path

        if self.drop is not None and self.budget is not None:
            raise ConfigError("--drop and --budget were both given.", hint="Give one of them.")
        dropped: list[CacheEntry] = []
        budget = None if self.budget is None else parse_size(self.budget)
        if self.drop is not None:
            dropped = drop(self.drop)
        elif budget is not None:
            dropped = evict(budget)
        entries = list_cache()
        if self.json:
            found = {"folder": str(cache_path()), "entries": [asdict(entry) for entry in entries]}
            output.emit_json({**found, "dropped": [asdict(entry) for entry in dropped]})
        else:
            _print(entries)
        if self.drop is not None or budget is not None:
            freed = output.size(sum(entry.bytes for entry in dropped))
            count = "1 entry" if len(dropped) == 1 else f"{len(dropped)} entries"
            output.say(f"Dropped {count}, {freed}.")
        kept = sum(entry.bytes for entry in entries if entry.kind != "kernels")
        if budget is not None and kept > budget:
            output.warn(f"Packs and scenes still take {output.size(kept)}: the rest is in use.")
        return 0


def _print(entries: list[CacheEntry]) -> None:
    rows = [
        (
            entry.name,
            entry.kind,
            output.size(entry.bytes),
            datetime.fromtimestamp(entry.used, timezone.utc).strftime("%Y-%m-%d %H:%M"),
            "in use" if entry.in_use else "shared with other programs" if entry.shared else "",
        )
        for entry in entries
    ]
    if not rows:
        output.say("Nothing is cached.")
        return
    made = output.table("", ("name", "what", "size", "last use\n(UTC)", ""), rows, right=("size",))
    made.add_section()
    made.add_row("in all", "", output.size(sum(entry.bytes for entry in entries)), "", "")
    output.results().print(made)
