"""Every public callable of the ops, with damaged arguments: a clear error or the answer of the reference."""

from __future__ import annotations

import pytest

from support.fuzz import require_sound, run_suite
from support.fuzz_coverage import public_callables, require_coverage

SHARED = ("activations", "contraction", "packed")
"""Modules of `kernels` that belong to no op and that other packages call."""


def test_every_public_callable_of_the_ops_has_a_case() -> None:
    shared = set().union(*(public_callables(f"raymine.kernels.{name}") for name in SHARED))
    require_coverage("support.fuzz_kernels", public_callables("raymine.kernels", only="op") | shared)


@pytest.mark.parametrize(
    "env",
    [{"RAYMINE_BOUNDS_CHECK": "1"}, {"NUMBA_NUM_THREADS": "3"}],
    ids=["with every index checked", "on three threads"],
)
def test_damaged_arguments_give_an_error_or_the_answer_of_the_reference(env: dict[str, str]) -> None:
    require_sound(run_suite("support.fuzz_kernels", env), at_least=2500)
