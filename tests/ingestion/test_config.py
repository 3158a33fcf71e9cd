"""Options of `raymine ingest`."""

from __future__ import annotations

from typing import Any

import pytest

from raymine.errors import ConfigError
from raymine.ingestion import IngestConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"frames": 2},
        {"frames": 10**6},
        {"matching": "some"},
        {"mapper": "fast"},
        {"lens": "round"},
        {"features": "many"},
        {"feature_size": 10},
        {"threads": -1},
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        IngestConfig(**wrong)


def test_pairs_are_chosen_by_the_number_of_pictures() -> None:
    config = IngestConfig()
    assert config.matching_for(120, video=False) == "exhaustive"
    assert config.matching_for(121, video=False) == "sequential"
    assert config.matching_for(60, video=True) == "exhaustive"
    assert config.matching_for(61, video=True) == "sequential"
    assert IngestConfig(matching="exhaustive").matching_for(999, video=True) == "exhaustive"
