"""Whatever the rounds take: no alarm for a few slow ones, one for many, and none without end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.problems import layer, problem, site

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.costing import costs_of
from asteroid_coordinator.straggler import Change, Pace, Rule, Watch, busy_of, scaled

RULE = Rule()
PREDICTED = {"a": 1.0, "b": 0.5, "c": 2.0}
FACTORS = st.floats(0.5, 20)


def _run(watch: Watch, factors: Sequence[Mapping[str, float]]) -> tuple[Watch, list[Change]]:
    said: list[Change] = []
    for each in factors:
        paces = [Pace(name, factor * watch.predicted[name], 1000.0) for name, factor in each.items()]
        watch, changes = watch.after(paces)
        said += changes
    return watch, said


def _begun(rule: Rule = RULE) -> Watch:
    watch, said = _run(Watch(rule).begun(PREDICTED), [dict.fromkeys(PREDICTED, 9.0)])  # does not count
    assert not said
    return watch


def _rounds(count: int, **factors: float) -> list[dict[str, float]]:
    return [{name: factors.get(name, 1.0) for name in PREDICTED} for _ in range(count)]


@given(st.lists(st.tuples(st.integers(0, 60), FACTORS), max_size=6))
def test_no_alarm_for_single_slow_rounds(slow: list[tuple[int, float]]) -> None:
    rounds = _rounds(80)
    last = -RULE.window
    for at, factor in sorted(slow):
        if at - last >= RULE.window // 2:  # fewer than half of any window
            rounds[at]["a"], last = factor, at
    assert _run(_begun(), rounds)[1] == []


@given(st.floats(1.5, 20), st.sampled_from(sorted(PREDICTED)))
def test_a_device_that_stays_slow_is_named_once_with_its_factor(factor: float, name: str) -> None:
    watch, said = _run(_begun(), _rounds(40, **{name: factor * 1.001}))
    assert [(change.device, change.slow) for change in said] == [(name, True)]
    assert said[0].factor == pytest.approx(factor * 1.001)
    assert watch.factor(name) == said[0].factor
    assert all(watch.factor(other) == 1.0 for other in PREDICTED if other != name)


@given(st.floats(2, 20))
def test_a_device_back_to_normal_is_cleared(factor: float) -> None:
    watch, said = _run(_begun(), [*_rounds(10, b=factor), *_rounds(10)])
    assert [change.slow for change in said if change.device == "b"] == [True, False]
    assert watch.factor("b") == 1.0
    assert "again" in said[-1].describe()


@given(st.lists(st.floats(1.21, 1.49), min_size=20, max_size=60))
def test_between_the_thresholds_nothing_is_said_either_way(factors: list[float]) -> None:
    between = [{"a": factor, "b": 1.0, "c": 1.0} for factor in factors]
    assert _run(_begun(), between)[1] == []
    watch, said = _run(_begun(), [*_rounds(10, a=1.55), *between])
    assert all(change.slow for change in said)
    assert watch.factor("a") > 1


@given(FACTORS)
def test_what_all_have_in_common_is_no_straggler(factor: float) -> None:
    assert _run(_begun(), _rounds(30, a=factor, b=factor, c=factor))[1] == []


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(PREDICTED, FACTORS)), max_size=60))
def test_changes_of_a_device_fit_together_and_give_the_factor(rounds: list[dict[str, float]]) -> None:
    watch, said = _run(_begun(), rounds)
    for name in PREDICTED:
        known = 1.0
        for change in (change for change in said if change.device == name):
            if not change.slow:
                assert known > 1
            elif known > 1:
                assert max(change.factor / known, known / change.factor) >= RULE.drift
            else:
                assert change.factor >= RULE.slow
            known = change.factor
        assert watch.factor(name) == known


def test_a_slow_device_stays_slow_under_another_plan_until_it_shows_better() -> None:
    watch, _ = _run(_begun(), _rounds(10, a=3.0))
    watch = watch.begun({"a": 0.2, "b": 1.0, "c": 1.0})
    watch, said = _run(watch, _rounds(RULE.skip + RULE.window - 1, a=3.0))
    assert not said
    assert watch.factor("a") == 3.0
    watch, said = _run(watch, _rounds(RULE.window))
    assert [(change.device, change.slow) for change in said] == [("a", False)]


def test_a_device_left_out_of_the_plan_and_one_profiled_anew() -> None:
    watch, _ = _run(_begun(), _rounds(10, a=3.0))
    without = watch.begun({"b": 0.5, "c": 2.0})
    assert without.factor("a") == 3.0  # nobody knows better: it does nothing
    assert without.forgotten("a").factor("a") == 1.0


def test_reports_that_cannot_be_true_and_strangers_do_not_count() -> None:
    watch = _begun()
    for _ in range(20):
        watch, said = watch.after([Pace("a", 50.0, 1.0), Pace("b", 0.0, 1.0), Pace("x", 1.0, 1.0)])
        assert not said
    assert watch.recent == {}


def test_a_device_alone_is_compared_with_its_profile() -> None:
    watch = Watch(Rule(skip=0)).begun({"a": 1.0})
    _, said = _run(watch, [{"a": 2.0}] * 8)
    assert said == [Change("a", 2.0, 8)]
    assert said[0].describe() == "a is 2.0 times slower than its profile, over the last 8 rounds"


@given(st.floats(0.2, 20))
def test_a_scaled_profile_predicts_the_busy_time_that_was_measured(factor: float) -> None:
    layers = [layer(n) for n in range(3)]
    given_problem = problem([site("a", [1e-3, 2e-3, 1e-3])], layers)
    plan = PLANNERS["asteroid"](given_problem, round_time)
    assert plan is not None
    busy = busy_of(plan, costs_of(plan, given_problem))["a"]
    slower = scaled(given_problem.sites[0].profile, factor)
    stretched = problem([type(given_problem.sites[0])("a", slower, 1000.0)], layers)
    assert busy_of(plan, costs_of(plan, stretched))["a"] == pytest.approx(factor * busy)
    assert (slower.bytes_per_s, slower.message_s) == (1e9, 1e-5)
