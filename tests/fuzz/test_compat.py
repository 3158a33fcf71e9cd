"""Every public callable of `raymine.compat`, with damaged arguments: a clear error or a right answer."""

from __future__ import annotations

import pytest

from support.fuzz import require_sound
from support.fuzz_callers import ENVIRONMENTS, reports
from support.fuzz_coverage import public_callables, require_coverage

SUITE = "support.fuzz_compat"


def test_every_public_callable_of_compat_has_a_case() -> None:
    older = ("raymine.compat.nerfacc_v02.", "raymine.compat.nerfacc_v03.")  # in `test_compat_older`
    wanted = {name for name in public_callables("raymine.compat") if not name.startswith(older)}
    require_coverage(SUITE, wanted)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_damaged_arguments_give_an_error_or_a_right_answer(environment: str) -> None:
    require_sound(reports(environment)[SUITE], at_least=4000)
