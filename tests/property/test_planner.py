"""What has to hold for plans of any small cluster: whole, within memory, no worse for having more, near the best."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.support.instances import gap, instance, quantile

from asteroid_coordinator.planner import PLANNERS, make_plan, round_time
from asteroid_coordinator.planner.baselines.hetpipe import hetpipe
from asteroid_coordinator.planner.costing import costs_of, memory_of
from asteroid_coordinator.planner.formula import lower_bound
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_core.errors import PlanError
from asteroid_core.plan import Plan

SEEDS = range(int(os.environ.get("ASTEROID_PLANNED", "12")))


def _predicted(problem: Problem, planner: str = "asteroid") -> float:
    try:
        predicted = make_plan(problem, 1, planner).plan.predicted_s
    except PlanError:
        return float("inf")
    assert predicted is not None
    return predicted


def _whole(plan: Plan, problem: Problem) -> None:
    assert [stage.lo for stage in plan.stages] == [0, *(stage.hi for stage in plan.stages[:-1])]
    assert plan.stages[-1].hi == len(problem.layers)
    for stage in plan.stages:
        assert sum(share.samples for share in stage.shares) == plan.micro_size
    assert plan.micro_size * plan.micro_count == problem.wishes.batch
    for need, lent in memory_of(plan, problem).values():
        assert need <= lent
    costs = costs_of(plan, problem)
    assert plan.predicted_s == pytest.approx(round_time(plan, costs))
    assert lower_bound(plan, costs) <= round_time(plan, costs) * (1 + 1e-9)


@pytest.mark.parametrize("planner", [name for name in PLANNERS if name != "exhaustive"])
def test_every_plan_covers_layers_and_samples_once_and_fits(planner: str) -> None:
    found = 0
    for seed in SEEDS:
        problem = instance(seed)
        plan = PLANNERS[planner](problem, round_time)
        if plan is not None:
            found += 1
            assert plan.planner == planner
            _whole(plan, problem)
    assert found > len(SEEDS) // 2


def test_the_pipelines_of_hetpipe_share_no_device_and_fit() -> None:
    found = 0
    for seed in SEEDS:
        problem = instance(seed)
        plans = hetpipe(problem, round_time)
        if plans is not None:
            found += 1
            devices = [device for plan in plans.plans for device in plan.devices]
            assert len(devices) == len(set(devices))
            assert sum(plan.batch for plan in plans.plans) == problem.wishes.batch
            assert plans.seconds >= max(plan.predicted_s or 0.0 for plan in plans.plans)
    assert found > len(SEEDS) // 2


def _faster(site: Site) -> Site:
    layers = tuple(
        times.model_copy(
            update={
                "forward_s": tuple(s / 4 for s in times.forward_s),
                "backward_s": tuple(s / 4 for s in times.backward_s),
            }
        )
        for times in site.profile.layers
    )
    return replace(site, profile=site.profile.model_copy(update={"layers": layers}))


def _linked(site: Site) -> Site:
    return replace(site, profile=site.profile.model_copy(update={"bytes_per_s": site.profile.bytes_per_s * 10}))


def _richer(site: Site) -> Site:
    return replace(site, budget_mb=site.budget_mb * 10)


@pytest.mark.parametrize("change", [_faster, _linked, _richer])
def test_more_of_something_never_makes_a_round_longer(change: Callable[[Site], Site]) -> None:
    for seed in SEEDS:
        problem = instance(seed)
        chosen = Random(seed).randrange(len(problem.sites))
        better = replace(problem, sites=tuple(change(s) if n == chosen else s for n, s in enumerate(problem.sites)))
        assert _predicted(better) <= _predicted(problem) * 1.02, f"seed {seed}"


def test_names_decide_nothing() -> None:
    for seed in SEEDS:
        problem = instance(seed)
        names = [site.name for site in problem.sites]
        Random(seed).shuffle(names)
        sites = [
            replace(site, name=name, profile=site.profile.model_copy(update={"device": name}))
            for site, name in zip(problem.sites, names, strict=True)
        ]
        Random(seed + 1).shuffle(sites)
        other = _predicted(replace(problem, sites=tuple(sites)))
        assert other == pytest.approx(_predicted(problem), rel=0.01), f"seed {seed}"


@pytest.mark.parametrize("first", [0, 25, 50, 75])
def test_plans_are_near_the_best_of_all(first: int) -> None:
    """A quarter of the hundred instances each; ``make planner-check`` does two thousand."""
    gaps = [gap(seed) for seed in range(first, first + 25)]
    assert not [one.seed for one in gaps if one.missed("asteroid")]
    ratios = [ratio for one in gaps if (ratio := one.ratio("asteroid")) is not None]
    assert quantile(ratios, 0.5) <= 1.01
    assert quantile(ratios, 0.96) <= 1.05
