"""Who keeps copies of whose snapshots, and how often snapshots are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support import replicas
from tests.support.problems import layer, problem, site

from asteroid_coordinator.planner.costing import memory_of
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.replication import KEPT, PACK_BYTES_PER_S, SLACK, Replicated, replicate, snapshot_s
from asteroid_core.plan import Plan
from asteroid_core.spec import OptimizerSpec, ReplicationSpec

MB = 1_000_000
MOMENTUM = OptimizerSpec(momentum=0.9)
AUTO = ReplicationSpec()


def _problem(
    plan: Plan,
    speeds: Mapping[str, float] | None = None,
    budgets: Mapping[str, float] | None = None,
    weights: Sequence[int] = (),
    cut: int = 0,
    optimizer: OptimizerSpec = MOMENTUM,
) -> Problem:
    """Layers of 1 MB (or ``weights``) and as much momentum; 100 MB/s and 1 GB on each device, or what is said."""
    sizes = weights or [MB] * plan.layers
    sites = [
        site(d, [1e-3] * plan.layers, (budgets or {}).get(d, 1000.0), (speeds or {}).get(d, 100e6))
        for d in plan.devices
    ]
    layers = [layer(i, size, 0, cut) for i, size in enumerate(sizes)]
    return replace(problem(sites, layers, optimizer=optimizer), snapshots=2)


def _backups(made: Replicated) -> list[tuple[str, ...]]:
    return [stage.backups for stage in made.plan.stages]


def _every(rounds: int | Literal["auto"]) -> ReplicationSpec:
    return ReplicationSpec(every=rounds)


# Off


def test_zero_rounds_turn_it_off() -> None:
    plan = replicas.plan("a | b", predicted_s=1.0)
    assert replicate(_problem(plan), plan, _every(0)) == Replicated(plan, 0, "")


@pytest.mark.parametrize("every", ["auto", 5])
def test_one_device_has_nobody_to_send_copies_and_that_is_said(every: int | Literal["auto"]) -> None:
    plan = replicas.plan("a", predicted_s=1.0)
    made = replicate(_problem(plan), plan, _every(every))
    assert (made.plan, made.every) == (plan, 0)
    assert made.note == "one device trains alone: a loss goes back to the last checkpoint"


# Backups


def test_every_lone_stage_has_a_backup_in_the_next_one_and_the_last_in_the_first() -> None:
    plan = replicas.plan("a | b | c", predicted_s=1.0)
    made = replicate(_problem(plan), plan, AUTO)
    assert _backups(made) == [("b",), ("c",), ("a",)]
    assert made.note == ""
    assert plan.stages[0].backups == (), "the plan that was handed in is left alone"


def test_a_group_needs_none() -> None:
    plan = replicas.plan("a b | c | d e f", predicted_s=1.0)
    made = replicate(_problem(plan), plan, AUTO)
    assert _backups(made) == [(), ("d",), ()]
    assert made.every >= 1


def test_groups_alone_replicate_themselves() -> None:
    plan = replicas.plan("a b c", predicted_s=1.0)
    made = replicate(_problem(plan), plan, _every(4))
    assert made == Replicated(plan, 4, "")


def test_a_faster_link_goes_before_the_next_stage() -> None:
    plan = replicas.plan("a | b | c | d", predicted_s=1.0)
    made = replicate(_problem(plan, {"a": 100e6, "b": 10e6, "c": 20e6, "d": 100e6}), plan, AUTO)
    # a: d is as fast as a itself. b: all are as slow as b itself, so the next. c: 20 MB/s to d. d: back to a.
    assert _backups(made) == [("d",), ("c",), ("d",), ("a",)]


def test_links_that_measure_nearly_the_same_are_the_same() -> None:
    plan = replicas.plan("a | b | c", predicted_s=1.0)
    made = replicate(_problem(plan, {"a": 100e6, "b": 99.9e6, "c": 100.1e6}), plan, AUTO)
    assert _backups(made)[0] == ("b",)
    made = replicate(_problem(plan, {"a": 100e6, "b": 90e6, "c": 100e6}), plan, AUTO)
    assert _backups(made)[0] == ("c",)


def test_in_a_group_the_member_with_more_memory_left_is_chosen() -> None:
    plan = replicas.plan("a | b c", predicted_s=1.0)
    assert _backups(replicate(_problem(plan, budgets={"b": 500}), plan, AUTO))[0] == ("c",)
    assert _backups(replicate(_problem(plan, budgets={"c": 500}), plan, AUTO))[0] == ("b",)


def _need(plan: Plan, device: str) -> float:
    """Megabytes that the plan itself needs on a device."""
    return memory_of(plan, _problem(plan))[device][0]


def test_a_device_without_room_for_two_snapshots_is_passed_over() -> None:
    plan = replicas.plan("a | b | c", predicted_s=1.0)
    room = KEPT * 2 * 2 * MB / MB  # two snapshots of two layers' weights and momentum
    exact = {"b": _need(plan, "b") + room}
    assert _backups(replicate(_problem(plan, budgets=exact), plan, AUTO))[0] == ("b",)
    short = {"b": exact["b"] - 0.1}
    assert _backups(replicate(_problem(plan, budgets=short), plan, AUTO))[0] == ("c",)


def test_memory_is_given_away_once() -> None:
    # a goes to c, which has room for one; b and c both go to a, which has room for two.
    plan = replicas.plan("a | b | c", predicted_s=1.0)
    room = KEPT * 4.0
    budgets = {"a": _need(plan, "a") + 2 * room, "b": _need(plan, "b"), "c": _need(plan, "c") + room}
    assert _backups(replicate(_problem(plan, budgets=budgets), plan, AUTO)) == [("c",), ("a",), ("a",)]
    budgets["a"] -= 0.1
    made = replicate(_problem(plan, budgets=budgets), plan, AUTO)
    assert (made.plan, made.every) == (plan, 0)


def test_without_room_anywhere_only_checkpoints_remain_and_that_is_said() -> None:
    plan = replicas.plan("a | b", predicted_s=1.0)
    for every in ("auto", 5):
        spec = ReplicationSpec.model_validate({"every": every})
        made = replicate(_problem(plan, budgets={"b": _need(plan, "b") + 1}), plan, spec)
        assert (made.plan, made.every) == (plan, 0)
        assert made.note == (
            "no device has the 8 MB left that copies of a's stage need: a loss goes back to the last checkpoint"
        )


def test_momentum_makes_copies_larger() -> None:
    plan = replicas.plan("a | b", predicted_s=1.0)
    plain, adamw = OptimizerSpec(momentum=0.0), OptimizerSpec(kind="adamw")
    budgets = {
        name: memory_of(plan, _problem(plan, optimizer=adamw))[name][0] + KEPT * 2 * 3.0 - 0.1 for name in plan.devices
    }
    assert replicate(_problem(plan, budgets=budgets, optimizer=adamw), plan, AUTO).every == 0
    assert replicate(_problem(plan, budgets=budgets, optimizer=plain), plan, AUTO).every > 0


# Interval


def test_a_wanted_interval_is_taken_as_it_is() -> None:
    plan = replicas.plan("a | b", predicted_s=0.001)
    made = replicate(_problem(plan, dict.fromkeys("ab", 1e3)), plan, _every(7))
    assert made.every == 7
    assert _backups(made) == [("b",), ("a",)]


def test_a_plan_without_a_predicted_time_takes_one_every_round() -> None:
    plan = replicas.plan("a | b")
    assert replicate(_problem(plan), plan, AUTO).every == 1


def test_what_a_snapshot_costs_is_the_copy_in_memory_and_the_busy_part_of_its_transfer() -> None:
    plan = replicas.plan("a | b", {"a": ("b",)}, predicted_s=2.0)
    size = 4 * MB  # two layers, weights and momentum
    assert snapshot_s(_problem(plan), plan) == pytest.approx((size / PACK_BYTES_PER_S, size / 100e6))
    # 24 samples of 1 MB each way: 0.24 s of 2 s
    cost, transfer = snapshot_s(_problem(plan, cut=MB), plan)
    assert transfer == pytest.approx(size / 100e6)
    assert cost == pytest.approx(size / PACK_BYTES_PER_S + 0.12 * transfer)


def test_a_link_is_never_more_than_busy() -> None:
    plan = replicas.plan("a | b", {"a": ("b",)}, predicted_s=0.01)
    cost, transfer = snapshot_s(_problem(plan, cut=MB), plan)
    assert cost == pytest.approx(4 * MB / PACK_BYTES_PER_S + transfer)


def test_a_group_pays_for_its_copies_in_memory_only() -> None:
    plan = replicas.plan("a b", predicted_s=1.0)
    assert snapshot_s(_problem(plan, dict.fromkeys("ab", 1.0)), plan) == (4 * MB / PACK_BYTES_PER_S, 0.0)


def test_links_without_a_limit_cost_no_time() -> None:
    plan = replicas.plan("a | b", {"a": ("b",)}, predicted_s=1.0)
    cost, transfer = snapshot_s(_problem(plan, dict.fromkeys("ab", math.inf), cut=MB), plan)
    assert (cost, transfer) == (4 * MB / PACK_BYTES_PER_S, 0.0)
    assert replicate(_problem(plan, dict.fromkeys("ab", math.inf)), plan, AUTO).every == 1


@pytest.mark.parametrize(
    ("round_s", "budget", "every"),
    [
        (1.0, 0.05, 1),  # 0.016 s of 1 s
        (0.1, 0.05, 4),  # 0.016 s of 0.4 s is 4 %, of 0.3 s it is more than 5 %
        (0.1, 0.5, 1),
        (0.01, 0.05, 32),
    ],
)
def test_snapshots_come_as_often_as_the_budget_allows(round_s: float, budget: float, every: int) -> None:
    plan = replicas.plan("a | b", predicted_s=round_s)
    made = replicate(_problem(plan, dict.fromkeys("ab", math.inf)), plan, ReplicationSpec(budget=budget))
    assert (made.every, made.note) == (every, "")


def test_a_loss_may_not_cost_more_than_was_said_whatever_the_budget() -> None:
    plan = replicas.plan("a | b", predicted_s=0.01)
    spec = ReplicationSpec(max_loss_s=0.1)
    made = replicate(_problem(plan, dict.fromkeys("ab", math.inf)), plan, spec)
    assert made.every == 10
    assert made.note == "snapshots every 10 rounds cost about 16% of the time, so that a loss costs no more work"


def test_a_slow_link_sets_the_pace_even_if_a_loss_costs_more_then() -> None:
    plan = replicas.plan("a | b", predicted_s=1.0)
    # 4 MB at 1 MB/s are 4 s, and half as much again
    made = replicate(_problem(plan, dict.fromkeys("ab", 1e6)), plan, ReplicationSpec(max_loss_s=2.0))
    assert made.every == math.ceil(4 * SLACK) == 6


# Always


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Problem, Plan, ReplicationSpec]:
    """Up to four stages of one or two devices, with any links, memory, sizes and round time."""
    names = iter("abcdefgh")
    groups = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    text = " | ".join(" ".join(next(names) for _ in range(count)) for count in groups)
    plan = replicas.plan(text, predicted_s=10.0 ** draw(st.floats(-3, 2)))
    sizes = draw(st.lists(st.integers(1_000, 20 * MB), min_size=plan.layers, max_size=plan.layers))
    speeds = {d: 10.0 ** draw(st.floats(5, 9)) for d in plan.devices}
    budgets = {d: draw(st.floats(1, 600)) for d in plan.devices}
    spec = ReplicationSpec(budget=draw(st.floats(0.01, 1)), max_loss_s=10.0 ** draw(st.floats(-1, 2)))
    return _problem(plan, speeds, budgets, sizes, draw(st.integers(0, MB))), plan, spec


def _left(given: Problem, plan: Plan) -> dict[str, float]:
    """Bytes that are left on each device beside its stage and the copies that it keeps for others."""
    left = {device: (lent - need) * 1e6 for device, (need, lent) in memory_of(plan, given).items()}
    for stage in plan.stages:
        for backup in stage.backups:
            left[backup] -= KEPT * given.sums.state(stage.lo, stage.hi, given.optimizer)
    return left


@settings(max_examples=300)
@given(_cases())
def test_each_lone_stage_has_one_backup_that_has_the_room_or_there_are_none(
    case: tuple[Problem, Plan, ReplicationSpec],
) -> None:
    given, plan, spec = case
    made = replicate(given, plan, spec)
    if made.every == 0:
        assert made.plan == plan
        assert made.note
        return
    before, after = _left(given, plan), _left(given, made.plan)
    for stage in made.plan.stages:
        assert len(stage.backups) == (len(stage.shares) == 1)
        for backup in stage.backups:
            assert backup not in stage.devices
            assert after[backup] >= 0
            assert after[backup] < before[backup]
    stripped = tuple(stage.model_copy(update={"backups": ()}) for stage in made.plan.stages)
    assert made.plan.model_copy(update={"stages": stripped}) == plan, "nothing but backups is changed"


@settings(max_examples=300)
@given(_cases())
def test_the_interval_keeps_the_budget_or_the_largest_loss_and_lets_a_transfer_end(
    case: tuple[Problem, Plan, ReplicationSpec],
) -> None:
    given, plan, spec = case
    made = replicate(given, plan, spec)
    assume(made.every)
    round_s = made.plan.predicted_s
    assert round_s is not None
    cost, transfer = snapshot_s(given, made.plan)
    interval = made.every * round_s
    near = 1 + 1e-9
    assert interval * near >= SLACK * transfer
    assert (cost <= spec.budget * interval * near) == (not made.note)
    least = max(1, math.ceil(SLACK * transfer / round_s))
    assert interval <= max(spec.max_loss_s, least * round_s) * near
    # one round less would break the budget, or the transfer would not end
    assert made.every == least or made.note or cost > spec.budget * (made.every - 1) * round_s


@settings(max_examples=100)
@given(_cases(), st.integers(1, 50))
def test_backups_do_not_depend_on_the_interval(case: tuple[Problem, Plan, ReplicationSpec], every: int) -> None:
    given, plan, spec = case
    auto, fixed = replicate(given, plan, spec), replicate(given, plan, _every(every))
    assert auto.plan == fixed.plan
    assert fixed.every in (0, every)


def test_a_sites_order_changes_nothing() -> None:
    plan = replicas.plan("a | b | c", predicted_s=0.1)
    given = _problem(plan, {"a": 10e6, "b": 30e6, "c": 30e6})
    turned: tuple[Site, ...] = given.sites[::-1]
    assert replicate(given, plan, AUTO) == replicate(replace(given, sites=turned), plan, AUTO)
