"""The protocol of evaluations, as a value."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch

from raymine.evaluate.protocol import Protocol, digest, protocol_of, quantised
from raymine.scenes import load_scene
from support.scene_writers import ring, write_colmap, write_images


def test_every_field_changes_the_digest() -> None:
    base = Protocol(views=3, available=9)
    seen = {digest(base)}
    for field in fields(Protocol):
        value = getattr(base, field.name)
        other = value + 1 if isinstance(value, int) else (0.5,) * 3 if isinstance(value, tuple) else value + "."
        seen.add(digest(replace(base, **{field.name: other})))
    assert len(seen) == len(fields(Protocol)) + 1
    assert digest(Protocol(views=3, available=9)) == digest(base)
    assert digest() == digest(Protocol())


def test_json_and_sentence_name_the_digest() -> None:
    protocol = Protocol(split="val", background=(1.0, 1.0, 1.0), views=3, available=9, width=80, height=60)
    assert protocol.to_json()["digest"] == digest(protocol)
    assert protocol.to_json()["background"] == [1.0, 1.0, 1.0]
    sentence = protocol.sentence()
    for part in (digest(protocol), "3 of 9 val images", "80x60", "(1, 1, 1)", "8 bits"):
        assert part in sentence
    assert "all 9 val images" in replace(protocol, views=9).sentence()


def test_protocol_says_which_images_were_used(tmp_path: Path) -> None:
    capture = ring()
    write_colmap(capture, tmp_path)
    divided = protocol_of(load_scene(tmp_path, downscale=4), "test", 2)
    write_images(capture, tmp_path / "images_4", (12, 8))
    official = protocol_of(load_scene(tmp_path, downscale=4), "test", 2)
    assert (divided.width, official.width) == (12, 12)
    assert (divided.images, official.images) == ("divided by 4", "images_4, as in their files")
    assert digest(divided) != digest(official)
    assert "images_4, as in their files" in official.sentence()
    assert protocol_of(load_scene(tmp_path), "test", 2).images == "as in their files"


def test_digest_of_images_as_they_are_is_that_of_earlier_versions() -> None:
    protocol = Protocol(background=(1.0, 1.0, 1.0), views=25, available=25, width=800, height=800)
    assert digest(protocol) == "a1c153aa52a7"


def test_quantised_truncates_and_keeps_all_levels() -> None:
    levels = torch.arange(256, dtype=torch.float32)
    for exact in (levels / 255, levels * torch.tensor(1 / 255)):
        assert torch.equal(quantised(exact), levels / 255)
    assert torch.equal(quantised(levels / 255 + 0.9 / 255), levels / 255)
    assert quantised(torch.tensor([-3.0, 7.0])).tolist() == [0.0, 1.0]
