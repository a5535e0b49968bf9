"""Thousands of random schedules of failures keep the invariants; and each invariant, once broken, is reported."""

from __future__ import annotations

import os

import pytest
from tests.simulation.schedule import run

SCHEDULES = int(os.environ.get("ASTEROID_SCHEDULES", "300"))
FIRST = int(os.environ.get("ASTEROID_SEED", "0"))
GROUP = 25


@pytest.mark.parametrize("first", range(0, SCHEDULES, GROUP))
def test_every_schedule_keeps_the_invariants_and_ends(first: int) -> None:
    for seed in range(first, min(first + GROUP, SCHEDULES)):
        outcome = run(seed)
        assert not outcome.violations, outcome.report()


def test_one_schedule() -> None:
    """``ASTEROID_SEED=123 pytest tests/simulation -k one``."""
    outcome = run(FIRST)
    assert not outcome.violations, outcome.report(400)


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run(7), run(7)
    assert (first.trace, first.steps, first.seconds) == (second.trace, second.steps, second.seconds)
    assert first.trace != run(8).trace
