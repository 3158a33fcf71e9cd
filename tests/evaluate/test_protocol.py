"""The protocol of evaluations, as a value."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from raymine.evaluate.protocol import Protocol, digest, quantised


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


def test_quantised_truncates_and_keeps_all_levels() -> None:
    levels = torch.arange(256, dtype=torch.float32)
    for exact in (levels / 255, levels * torch.tensor(1 / 255)):
        assert torch.equal(quantised(exact), levels / 255)
    assert torch.equal(quantised(levels / 255 + 0.9 / 255), levels / 255)
    assert quantised(torch.tensor([-3.0, 7.0])).tolist() == [0.0, 1.0]
