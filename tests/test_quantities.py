"""Quantities as text."""

from __future__ import annotations

import math

import pytest

from raymine.quantities import duration, listing, size


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.34, "7.3 s"), (250, "4 min 10 s"), (7500, "2 h 05 min"), (math.nan, "-")]
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(("count", "words"), [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more")])
def test_listing(count: int, words: str) -> None:
    assert listing("abcd"[:count], 3) == words


@pytest.mark.parametrize(("count", "words"), [(12, "12 B"), (2048, "2.0 KiB"), (5 << 40, "5.0 TiB")])
def test_size(count: float, words: str) -> None:
    assert size(count) == words
