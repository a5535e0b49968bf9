"""The closed formula and the simulator agree where the formula's assumptions hold, and say who is right elsewhere."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asteroid_coordinator.planner.baselines.dapple import latency as dapple_latency
from asteroid_coordinator.planner.formula import Step, dominant, latency, lower_bound, paper_round, paper_steps
from asteroid_coordinator.simulator.engine import simulate
from asteroid_core.costs import Costs, DeviceCost, Network
from asteroid_core.plan import Plan, Share, Stage


def _case(seed: int, cross: float) -> tuple[Plan, Costs]:
    """A pipeline of single devices within 20 % of each other; transfers take ``cross`` of what computing does."""
    random = Random(seed)
    count, micros = random.randint(2, 5), random.randint(4, 32)
    stages = tuple(
        Stage(lo=i, hi=i + 1, shares=(Share(device=f"d{i}", samples=1),), warm_up=2 * (count - i) - 1)
        for i in range(count)
    )
    plan = Plan(generation=1, stages=stages, micro_size=1, micro_count=micros)
    devices = []
    for name in plan.devices:
        forward = random.uniform(0.8, 1.2)
        devices.append(
            DeviceCost(device=name, forward_s=forward, backward_s=2 * forward, bytes_per_s=1000.0, message_s=0.0)
        )
    size = tuple(int(1500 * cross) for _ in range(count - 1))
    return plan, Costs(
        devices=tuple(devices),
        activation_bytes=size,
        gradient_bytes=size,
        reduce_bytes=(0,) * count,
        network=Network(direct=True),
    )


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_they_agree_where_transfers_are_short(seed: int) -> None:
    plan, costs = _case(seed, 0.05)
    assert 0.92 <= paper_round(plan, costs) / simulate(plan, costs, record=False).round_s <= 1.001


def test_they_agree_exactly_without_transfers_and_with_equal_stages() -> None:
    plan, costs = _case(1, 0.0)
    equal = tuple(cost.model_copy(update={"forward_s": 1.0, "backward_s": 2.0}) for cost in costs.devices)
    costs = costs.model_copy(update={"devices": equal})
    expected = (plan.micro_count + len(plan.stages) - 1) * 3.0
    assert paper_round(plan, costs) == pytest.approx(expected)
    assert simulate(plan, costs).round_s == pytest.approx(expected)


def test_where_transfers_dominate_the_formula_puts_both_directions_on_one_link() -> None:
    plan, costs = next(case for seed in range(50) if len((case := _case(seed, 3.0))[0].stages) == 2)
    simulated = simulate(plan, costs, record=False).round_s
    assert paper_round(plan, costs) > 1.2 * simulated
    assert lower_bound(plan, costs) <= simulated


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.0]))
@settings(max_examples=150, deadline=None)
def test_no_round_beats_the_lower_bound(seed: int, cross: float) -> None:
    plan, costs = _case(seed, cross)
    assert lower_bound(plan, costs) <= simulate(plan, costs, record=False).round_s * (1 + 1e-9)


def test_the_dominant_step_is_found_after_aligning() -> None:
    # The second step is shorter by less than what comes before it is long: aligned, it is the later one that counts.
    steps = [Step(1.0, 2.0), Step(0.0, 0.0), Step(0.9, 1.9)]
    assert dominant(steps, 4) == 2
    assert dominant(steps, 40) == 0
    assert latency([Step(1.0, 2.0)], 4) == pytest.approx(12.0)


def test_an_allreduce_counts_only_as_far_as_it_outlasts_the_drain() -> None:
    hidden = [Step(1.0, 2.0), Step(0.0, 0.0), Step(1.0, 2.0, allreduce=1.9)]
    shown = [Step(1.0, 2.0), Step(0.0, 0.0), Step(1.0, 2.0, allreduce=5.0)]
    assert latency(hidden, 4) == pytest.approx(15.0)
    assert latency(shown, 4) == pytest.approx(15.0 - 2.0 + 5.0)
    assert dapple_latency(hidden, 4) == pytest.approx(15.0)
    assert dapple_latency(shown, 4) == pytest.approx(15.0 - 2.0 + 5.0)


def test_a_transfer_takes_the_slowest_link_of_both_groups_in_the_paper() -> None:
    plan, costs = _case(5, 1.0)
    slow = costs.devices[1].model_copy(update={"bytes_per_s": 100.0})
    steps = paper_steps(plan, costs.model_copy(update={"devices": (costs.devices[0], slow, *costs.devices[2:])}))
    assert steps[1].forward == pytest.approx(15.0)
