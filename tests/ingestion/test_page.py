"""ingest.html opens without network and says what became of each photo."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from raymine.ingestion.page import page
from raymine.ingestion.photos import Photo
from raymine.ingestion.source import Skipped
from raymine.ingestion.verdict import Verdict


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self.images.append(values)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict(name: str, registered: bool, *why: str) -> Verdict:
    return Verdict(Photo(name, name, 90, 60, "", None, 12.0, 99.0), registered, 7, 1200, 3, why, ())


def test_page_is_self_contained_and_names_every_photo(tmp_path: Path) -> None:
    for name in ("a.jpg", "b&<i>.jpg"):
        Image.new("RGB", (900, 600), "teal").save(tmp_path / name)
    verdicts = [verdict("a.jpg", True), verdict("b&<i>.jpg", False, "It is <blurred>."), verdict("gone.jpg", True)]
    text = page("Poses", verdicts, [Skipped("c.heic", "is <odd>.")], {"time": "3 s"}, ["Do <that>."], tmp_path)
    reader = Reader()
    reader.feed(text)
    assert "2 of 3 photos have a pose" in reader.text
    for part in ("a.jpg", "b&<i>.jpg", "It is <blurred>.", "c.heic", "is <odd>.", "Do <that>.", "3 s", "gone.jpg"):
        assert part in reader.text, part
    assert [image["alt"] for image in reader.images] == ["photo b&<i>.jpg", "photo a.jpg"]
    assert all(link.startswith("data:image/jpeg;base64,") for link in reader.links)
    assert len(text) < 20_000, "thumbnails must be small"
