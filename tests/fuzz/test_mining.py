"""Every public callable of `raymine.mining`, with damaged arguments: a clear error or a right answer."""

from __future__ import annotations

import pytest

from support.fuzz import require_sound
from support.fuzz_callers import ENVIRONMENTS, reports
from support.fuzz_coverage import public_callables, require_coverage

SUITE = "support.fuzz_mining"


def test_every_public_callable_of_mining_has_a_case() -> None:
    require_coverage(SUITE, public_callables("raymine.mining"))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_damaged_arguments_give_an_error_or_a_right_answer(environment: str) -> None:
    require_sound(reports(environment)[SUITE], at_least=1500)
