"""A change of plan is made only where it pays back, and never made and taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.problems import layer, problem, site

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.draft import Piece, draft
from asteroid_coordinator.planner.problem import Problem, Wishes
from asteroid_coordinator.planner.worth import (
    Rule,
    calibrated,
    change_cost,
    far_from_full,
    pays,
    transfers,
)
from asteroid_core.costs import FeedCost, Network
from asteroid_core.plan import Plan
from asteroid_core.spec import OptimizerSpec

SECONDS = st.floats(1e-3, 1e3)
ROUNDS = st.integers(0, 100_000)
COST = st.floats(0, 1e5)
RULES = st.builds(Rule, st.floats(0.01, 0.5), st.floats(1, 5))


@given(SECONDS, st.floats(0, 1), ROUNDS, COST, RULES)
def test_no_change_for_a_gain_below_hysteresis(
    current: float, part: float, rounds: int, cost: float, rule: Rule
) -> None:
    candidate = current * (1 - 0.999 * part * rule.gain)
    assert not pays(current, candidate, rounds, cost, rule).pays


@given(SECONDS, SECONDS, ROUNDS, ROUNDS, COST, COST, RULES)
def test_what_pays_is_never_taken_back(
    a: float, b: float, there: int, back: int, cost: float, other: float, rule: Rule
) -> None:
    if pays(a, b, there, cost, rule).pays:
        assert not pays(b, a, back, other, rule).pays


@given(SECONDS, SECONDS, ROUNDS, ROUNDS, COST, RULES)
def test_more_rounds_never_turn_a_yes_into_a_no(
    a: float, b: float, few: int, more: int, cost: float, rule: Rule
) -> None:
    if pays(a, b, few, cost, rule).pays:
        assert pays(a, b, few + more, cost, rule).pays


@given(SECONDS, SECONDS, ROUNDS, COST, st.floats(0, 1), RULES)
def test_a_lower_cost_never_turns_a_yes_into_a_no(
    a: float, b: float, rounds: int, cost: float, part: float, rule: Rule
) -> None:
    if pays(a, b, rounds, cost, rule).pays:
        assert pays(a, b, rounds, cost * part, rule).pays


@given(SECONDS, SECONDS, ROUNDS, COST, RULES)
def test_a_change_that_pays_ends_the_job_sooner(a: float, b: float, rounds: int, cost: float, rule: Rule) -> None:
    if pays(a, b, rounds, cost, rule).pays:
        assert cost + rounds * b < rounds * a


def test_no_change_for_nothing_at_the_end() -> None:
    assert not pays(2.0, 1.0, 0, 0.0).pays
    assert pays(2.0, 1.0, 1, 0.0).pays
    assert "does not pay" in pays(2.0, 1.0, 10, 6.0).describe()
    with pytest.raises(ValueError):
        Rule(gain=0)


def test_a_full_plan_is_worth_a_look_below_nine_tenths_of_its_throughput() -> None:
    assert far_from_full(1.0, 0.89)
    assert not far_from_full(1.0, 0.91)
    assert not far_from_full(None, 0.5)


def test_a_prediction_is_stretched_as_the_one_in_force_was() -> None:
    assert calibrated(2.0, 4.0, 6.0) == 3.0
    assert calibrated(2.0, 4.0, None) == 2.0


# Cost of a change


def _problem(momentum: float = 0.0) -> Problem:
    layers = [layer(n, weights=1000 * (n + 1)) for n in range(4)]
    sites = [site("a", [1e-3] * 4, bytes_per_s=1e3), site("b", [1e-3] * 4, bytes_per_s=2e3), site("c", [1e-3] * 4)]
    return problem(sites, layers, Wishes(8, (4,)), optimizer=OptimizerSpec(momentum=momentum))


def _plan(given: Problem, *stages: tuple[int, int, str], backups: str = "") -> Plan:
    pieces = [Piece(lo, hi, tuple(names), len(stages) - n) for n, (lo, hi, names) in enumerate(stages)]
    plan = draft(given, pieces, 4)
    assert plan is not None
    first = plan.stages[0].model_copy(update={"backups": tuple(backups)})
    return plan.model_copy(update={"stages": (first, *plan.stages[1:])})


def test_a_device_fetches_what_it_neither_trained_nor_kept() -> None:
    given = _problem()
    old, new = _plan(given, (0, 2, "a"), (2, 4, "b")), _plan(given, (0, 3, "a"), (3, 4, "b"))
    assert transfers(given, old, new) == ({"a": 3000}, 3.0)
    assert transfers(given, old, old) == ({}, 0.0)
    kept = _plan(given, (0, 2, "a"), (2, 4, "b"), backups="b")
    assert transfers(given, kept, _plan(given, (0, 1, "a"), (1, 4, "b"))) == ({}, 0.0)


def test_moments_travel_with_the_weights() -> None:
    given = _problem(momentum=0.9)
    old, new = _plan(given, (0, 2, "a"), (2, 4, "b")), _plan(given, (0, 3, "a"), (3, 4, "b"))
    assert transfers(given, old, new)[0] == {"a": 6000}


def test_the_slowest_link_counts_also_a_senders_and_the_brokers() -> None:
    given = _problem()
    old, new = _plan(given, (0, 2, "a"), (2, 4, "b")), _plan(given, (0, 2, "c"), (2, 4, "b"))
    assert transfers(given, old, new) == ({"c": 3000}, 3.0)  # a sends it at 1 kB/s
    hub = replace(given, network=Network(hub_bytes_per_s=500.0))
    assert transfers(hub, old, new)[1] == 6.0


def test_what_nobody_has_comes_from_the_coordinator() -> None:
    given = replace(_problem(), feed=FeedCost(bytes_per_s=100.0))
    old, new = _plan(given, (0, 2, "a"), (2, 4, "b")), _plan(given, (0, 2, "c"), (2, 4, "b"))
    left = replace(given, sites=given.sites[1:])  # a is gone
    assert transfers(left, old, new) == ({"c": 3000}, 30.0)


def test_rounds_run_again_and_the_restart_are_part_of_the_cost() -> None:
    given = _problem()
    old, new = _plan(given, (0, 2, "a"), (2, 4, "b")), _plan(given, (0, 3, "a"), (3, 4, "b"))
    cost = change_cost(given, old, new, again=4, round_s=0.5, restart_s=1.5)
    assert (cost.transfer_s, cost.again_s, cost.restart_s, cost.seconds) == (3.0, 2.0, 1.5, 6.5)


def test_a_full_plan_never_pays_over_itself() -> None:
    given = _problem()
    plan = PLANNERS["asteroid"](given, round_time)
    assert plan is not None
    assert plan.predicted_s is not None
    assert not pays(plan.predicted_s, plan.predicted_s, 10**9, change_cost(given, plan, plan).seconds).pays
