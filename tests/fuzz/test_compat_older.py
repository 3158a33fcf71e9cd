"""Every public callable of the drop-ins for nerfacc 0.2 and 0.3, with damaged arguments."""

from __future__ import annotations

import pytest

from support.fuzz import require_sound, run_suite
from support.fuzz_callers import ENVIRONMENTS
from support.fuzz_coverage import public_callables, require_coverage


def test_every_public_callable_of_the_older_drop_ins_has_a_case() -> None:
    wanted = public_callables("raymine.compat.nerfacc_v03") | public_callables("raymine.compat.nerfacc_v02")
    require_coverage("support.fuzz_compat_older", wanted)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_damaged_arguments_give_an_error_or_the_answer_of_the_reference(environment: str) -> None:
    name, value = ENVIRONMENTS[environment].split("=")
    require_sound(run_suite("support.fuzz_compat_older", {name: value}), at_least=7000)
