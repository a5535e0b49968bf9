"""Light plans after a loss: what stays, what fits, and when none is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.instances import instance

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.costing import fits
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.replay import HORIZON, lighter, moved, regroup, replay
from asteroid_coordinator.planner.worth import pays, transfers
from asteroid_core.plan import Plan

SEEDS = (0, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 16, 17, 20, 21, 22, 23, 24, 26, 27)
"""Instances that fit on several devices."""


def _planned(seed: int) -> tuple[Problem, Plan]:
    """An instance and its plan over all devices."""
    problem = instance(seed)
    wishes = replace(problem.wishes, all_devices=True)
    plan = PLANNERS["asteroid"](replace(problem, wishes=wishes), round_time)
    assert plan is not None
    assert len(plan.devices) > 1
    return problem, plan


@pytest.mark.parametrize("seed", SEEDS)
def test_a_light_plan_covers_the_model_without_the_lost_device(seed: int) -> None:
    problem, old = _planned(seed)
    for lost in old.devices:
        left = replace(problem, sites=tuple(site for site in problem.sites if site.name != lost))
        again = replay(left, old, round_time)
        if again is None:
            continue
        assert lost not in again.devices
        assert (again.layers, again.batch, again.generation) == (old.layers, old.batch, old.generation + 1)
        assert fits(again, left)
        assert moved(left, again, again) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_new_shares_leave_every_layer_where_it_is(seed: int) -> None:
    problem, old = _planned(seed)
    for stage in old.stages:
        for lost in stage.devices:
            left = replace(problem, sites=tuple(site for site in problem.sites if site.name != lost))
            again = regroup(left, old, round_time)
            if len(stage.devices) == 1:
                assert again is None
            elif again is not None:
                assert moved(left, old, again) == 0
                assert [(s.lo, s.hi) for s in again.stages] == [(s.lo, s.hi) for s in old.stages]
                assert set(again.devices) == set(old.devices) - {lost}
                assert fits(again, left)


def _lost(seed: int) -> tuple[Problem, Plan, str]:
    """A plan that leaves a device idle, and the loss of a stage of it."""
    problem = instance(seed)
    old = PLANNERS["asteroid"](problem, round_time)
    assert old is not None
    lost = next(stage.devices[0] for stage in old.stages if len(stage.devices) == 1)
    assert set(old.devices) < {site.name for site in problem.sites}
    return replace(problem, sites=tuple(site for site in problem.sites if site.name != lost)), old, lost


IDLE = (12, 30, 45, 112, 156, 424)
"""Instances whose plan leaves a device idle."""


@pytest.mark.parametrize("seed", IDLE)
def test_an_idle_device_takes_the_place_of_a_lost_one(seed: int) -> None:
    left, old, _ = _lost(seed)
    light, regrouped = lighter(left, old, round_time, again=10)
    full = PLANNERS["asteroid"](left, round_time)
    assert light is not None
    assert full is not None
    assert not regrouped
    assert light.predicted_s is not None
    assert full.predicted_s is not None
    assert full.predicted_s >= 0.85 * light.predicted_s


@pytest.mark.parametrize("seed", IDLE)
def test_a_plan_by_hand_keeps_its_structure(seed: int) -> None:
    left, old, lost = _lost(seed)
    light = replay(left, old.model_copy(update={"planner": "fixed"}), round_time)
    if light is not None:
        assert light.planner == "fixed"
        assert len(light.stages) == len([stage for stage in old.stages if stage.devices != (lost,)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_goes_on_live_unless_moving_boundaries_pays(seed: int) -> None:
    problem, old = _planned(seed)
    for stage in old.stages:
        for lost in stage.devices:
            left = replace(problem, sites=tuple(site for site in problem.sites if site.name != lost))
            same = regroup(left, old, round_time)
            plan, regrouped = lighter(left, old, round_time)
            assert regrouped == (same is not None)
            if same is None:
                continue
            assert plan == same
            for name in ("fixed", "dp"):
                assert lighter(left, old.model_copy(update={"planner": name}), round_time, again=0)[1]
            plan, regrouped = lighter(left, old, round_time, again=10)
            assert plan is not None
            if not regrouped:
                assert same.predicted_s is not None
                assert plan.predicted_s is not None
                assert pays(same.predicted_s, plan.predicted_s, HORIZON, 10 * plan.predicted_s).pays
            assert lighter(left, old, round_time, again=10**9)[1]


def test_of_few_rounds_that_remain_none_are_spent_on_moving_weights() -> None:
    for seed in IDLE:
        left, old, _ = _lost(seed)
        long, short = (replay(left, old, round_time, rounds) for rounds in (100_000, 1))
        assert long is not None
        assert short is not None
        assert transfers(left, old, short)[1] <= transfers(left, old, long)[1] + (short.predicted_s or 0.0)
