"""Tensors share links: first come, first served, where they come; and a round is wholly accounted for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plans import random_plan

from asteroid_coordinator.simulator.engine import simulate
from asteroid_coordinator.simulator.trace import Trace
from asteroid_core.costs import Costs, DeviceCost, Network
from asteroid_core.plan import Order, Plan, Share, Stage

STREAMS = Network(direct=True)
"""Bytes arrive as they leave."""


def _random_costs(plan: Plan, random: Random, bytes_per_s: float = 2000.0) -> Costs:
    count = len(plan.stages)
    return Costs(
        devices=tuple(
            DeviceCost(
                device=d,
                forward_s=random.random(),
                backward_s=random.random(),
                step_s=random.random(),
                bytes_per_s=bytes_per_s,
                message_s=0.001,
            )
            for d in plan.devices
        ),
        activation_bytes=tuple(random.randint(100, 500) for _ in range(count - 1)),
        gradient_bytes=tuple(random.randint(100, 500) for _ in range(count - 1)),
        reduce_bytes=tuple(random.randint(100, 3000) for _ in range(count)),
        tie_bytes=tuple(random.randint(10, 100) for _ in plan.ties),
        network=STREAMS,
    )


def _traced(seed: int) -> tuple[Plan, Trace]:
    random = Random(seed)
    plan = random_plan(random)
    return plan, simulate(plan, _random_costs(plan, random))


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@given(stages=st.integers(1, 5), micros=st.integers(1, 12), forward=st.integers(1, 9), backward=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_a_balanced_pipeline_follows_the_closed_form(
    order: Order, stages: int, micros: int, forward: int, backward: int
) -> None:
    plan = Plan(
        generation=1,
        stages=tuple(
            Stage(lo=i, hi=i + 1, shares=(Share(device=f"d{i}", samples=2),), warm_up=2 * (stages - i) - 1)
            for i in range(stages)
        ),
        micro_size=2,
        micro_count=micros,
        order=order,
    )
    costs = Costs(
        devices=tuple(
            DeviceCost(device=d, forward_s=forward, backward_s=backward, message_s=0.0) for d in plan.devices
        ),
        activation_bytes=(0,) * (stages - 1),
        gradient_bytes=(0,) * (stages - 1),
        reduce_bytes=(0,) * stages,
    )
    assert simulate(plan, costs).round_s == pytest.approx((micros + stages - 1) * (forward + backward))


def test_a_tensor_that_waits_for_its_senders_uplink_does_not_hold_the_receiver_up() -> None:
    """``a`` and ``b`` feed ``c`` and ``d``; ``a`` has one more tensor to send before the one for ``d``."""
    plan = Plan(
        generation=1,
        stages=(
            Stage(lo=0, hi=1, shares=(Share(device="a", samples=6), Share(device="b", samples=2)), warm_up=3),
            Stage(lo=1, hi=2, shares=(Share(device="c", samples=4), Share(device="d", samples=4)), warm_up=1),
        ),
        micro_size=8,
        micro_count=1,
    )
    costs = Costs(
        devices=tuple(
            DeviceCost(device=d, forward_s=1.0, backward_s=1.0, bytes_per_s=1000.0, message_s=0.0) for d in plan.devices
        ),
        activation_bytes=(1000,),
        gradient_bytes=(0,),
        reduce_bytes=(0, 0),
        network=STREAMS,
    )
    moves = {(m.source, m.target): m for m in simulate(plan, costs).transfers if str(m.item) == "0SA0"}
    # a: four rows to c until 5 s, then two rows to d; b's two rows reach d's idle downlink at once
    assert moves["a", "c"].end == pytest.approx(5.0)
    assert moves["b", "d"].end == pytest.approx(3.0)
    assert moves["a", "d"].end == pytest.approx(7.0)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_downlink_serves_in_the_order_of_first_bytes(seed: int) -> None:
    plan, trace = _traced(seed)
    for device in plan.devices:
        mine = [m for m in trace.transfers if m.target == device]
        for one in mine:
            for other in mine:
                if one.start < other.start - 1e-9:
                    assert one.end <= other.end + 1e-9


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_round_add_up_and_no_device_does_two_things_at_once(seed: int) -> None:
    plan, trace = _traced(seed)
    for device in plan.devices:
        parts = trace.parts(device)
        assert parts.busy + parts.communicating + parts.waiting == pytest.approx(1.0)
        assert min(parts.busy, parts.communicating, parts.waiting) >= -1e-12
        assert parts.busy == pytest.approx(trace.busy(device))
        spans = [s for s in trace.spans if s.device == device]
        assert all(spans[i].end <= spans[i + 1].start + 1e-9 for i in range(len(spans) - 1))


def test_a_device_that_waits_for_a_tensor_is_communicating() -> None:
    stages = tuple(Stage(lo=i, hi=i + 1, shares=(Share(device="ab"[i], samples=1),), warm_up=1) for i in range(2))
    plan = Plan(generation=1, stages=stages, micro_size=1, micro_count=1)
    costs = Costs(
        devices=tuple(
            DeviceCost(device=d, forward_s=1.0, backward_s=1.0, bytes_per_s=1000.0, message_s=0.0) for d in "ab"
        ),
        activation_bytes=(2000,),
        gradient_bytes=(0,),
        reduce_bytes=(0, 0),
        network=STREAMS,
    )
    # a: 0-1 forward, 1-3 sends, 3-5 waits for b, 5-6 backward; b: 0-1 waits, 1-3 receives, 3-5 computes, 5-6 waits
    trace = simulate(plan, costs)
    assert trace.round_s == pytest.approx(6.0)
    for device, expected in (("a", (2, 2, 2)), ("b", (2, 2, 2))):
        parts = trace.parts(device)
        assert (parts.busy * 6, parts.communicating * 6, parts.waiting * 6) == pytest.approx(expected)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_links_without_cost_never_make_a_round_longer(seed: int) -> None:
    random = Random(seed)
    plan = random_plan(random)
    costs = _random_costs(plan, random)
    idle = {"bytes_per_s": 1e15, "message_s": 0.0}
    free = costs.model_copy(update={"devices": tuple(d.model_copy(update=idle) for d in costs.devices)})
    assert simulate(plan, free).round_s <= simulate(plan, costs).round_s + 1e-9
