"""One fuzz run of the packages above the ops, which call the same kernels: they are compiled once for all three."""

from __future__ import annotations

from functools import cache

from support.fuzz import Report, run_suites

SUITES = ("support.fuzz_toolkit", "support.fuzz_mining", "support.fuzz_compat")

ENVIRONMENTS = {"with every index checked": "RAYMINE_BOUNDS_CHECK=1", "on three threads": "NUMBA_NUM_THREADS=3"}
"""Environment variables of the workers, by what they do."""


@cache
def reports(environment: str) -> dict[str, Report]:
    """The reports of all three suites in one of ENVIRONMENTS."""
    name, value = ENVIRONMENTS[environment].split("=")
    return run_suites(SUITES, {name: value})
