"""The fuzz harness notices a crash, a hang, a wrong result, a write outside of a tensor and an unclear error."""

from __future__ import annotations

import pytest

from support.fuzz import Report, require_sound, run_suite
from support.fuzz_coverage import public_callables, require_coverage


@pytest.fixture(scope="module")
def report() -> Report:
    return run_suite("support.fuzz_faults", silence=3.0)


@pytest.mark.parametrize(
    ("case", "note"),
    [
        ("_crashes_on_nan: values one nan", "the process ended; exit code -11"),
        ("_crashes_on_nan: values all nan", "the process ended; exit code -11"),
        ("_hangs_on_nan: values all nan", "no answer for 3 s"),
        ("_differs_from_its_reference: 5 rays, 23 samples", "result differs by 1"),
        ("_writes_next_to_its_argument: 5 rays, 23 samples", "memory next to `values` was written"),
        ("_changes_its_argument: 5 rays, 23 samples", "`values` was changed"),
        ("_raises_what_torch_says: values one row less", "RuntimeError: shape '[23]' is invalid"),
    ],
)
def test_fault_is_reported_with_the_call_that_shows_it(report: Report, case: str, note: str) -> None:
    assert [line for line in report.failures if f"fuzz_faults.{case}: {note}" in line], report.failures


def test_a_callable_without_faults_passes_and_the_others_continue_after_a_fault(report: Report) -> None:
    assert not [line for line in report.failures if "_careful" in line]
    assert report.answered > 20
    assert report.refused > 40
    with pytest.raises(AssertionError, match="memory next to"):
        require_sound(report, at_least=1)


def test_an_op_without_a_case_is_reported() -> None:
    wanted = public_callables("raymine.kernels", only="op")
    assert "raymine.kernels.scan.op.running_sum" in wanted
    with pytest.raises(AssertionError, match=r"have no fuzz case: .*raymine\.kernels\.adam\.op\.update"):
        require_coverage("support.fuzz_faults", wanted)
