"""Names of the compared mining policies: the config overrides they stand for, and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymine.bench import parse_policies
from raymine.config import replace_fields
from raymine.errors import ConfigError
from raymine.mining import PUBLISHED
from raymine.recipes.policies import POLICIES
from support.step import CONFIG


def test_policy_names_map_to_config_overrides() -> None:
    for policy in parse_policies(",".join(POLICIES)):
        config = replace_fields(CONFIG, policy.overrides)
        assert config.mining.policy == policy.name.partition(":")[0]
    made = {p.name: replace_fields(CONFIG, p.overrides).mining for p in parse_policies(",".join(POLICIES))}
    assert made["hard:published"].hard == PUBLISHED
    assert made["hard:published"].faint == 0
    assert made["hard:topk"].hard.draw == "topk"
    assert made["hard:biased"].hard.reweight == "none"
    assert made["hard"] == replace(CONFIG.mining, policy="hard")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("none,hrad", "no policy `hrad`. Did you mean `hard`?"),
        ("hard:best", "no policy `hard:best`"),
        (" , ", "names no policy"),
        ("none,none", "`none` twice"),
    ],
)
def test_invalid_policy_list_raises_and_lists_known_policies(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policies(text)
    assert words in error.value.message
    assert all(name in error.value.hint for name in POLICIES)
