"""Light plans after a loss: what stays, what fits, and when none is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.instances import instance

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.costing import fits
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.replay import moved, regroup, replay
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
