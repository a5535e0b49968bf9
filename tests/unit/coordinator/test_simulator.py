"""The simulator agrees with what can be computed by hand, and its traces can be looked at."""

from __future__ import annotations

import itertools
import json
from random import Random
from xml.etree import ElementTree

import pytest
from tests.support.plans import random_plan

from asteroid_coordinator.cli.gantt import LEGEND, gantt_svg, gantt_text
from asteroid_coordinator.simulator.engine import simulate
from asteroid_core.costs import Costs, DeviceCost, FeedCost, Network
from asteroid_core.plan import Order, Plan, Share, Stage

STREAMS = Network(direct=True)
"""Bytes arrive as they leave."""


def _line(count: int, micros: int, order: Order = "1f1b") -> Plan:
    stages = tuple(
        Stage(lo=i, hi=i + 1, shares=(Share(device="abcdef"[i], samples=4),), warm_up=2 * (count - i) - 1)
        for i in range(count)
    )
    return Plan(generation=1, stages=stages, micro_size=4, micro_count=micros, order=order)


def _costs(
    plan: Plan,
    forward: float = 1.0,
    backward: float = 2.0,
    *,
    bytes_per_s: float = 1e8,
    message_s: float = 0.0,
    network: Network = STREAMS,
    feed: FeedCost | None = None,
    **more: tuple[int, ...],
) -> Costs:
    count = len(plan.stages)
    link = {"bytes_per_s": bytes_per_s, "message_s": message_s}
    raw: dict[str, object] = {
        "devices": tuple(DeviceCost(device=d, forward_s=forward, backward_s=backward, **link) for d in plan.devices),
        "activation_bytes": (0,) * (count - 1),
        "gradient_bytes": (0,) * (count - 1),
        "reduce_bytes": (0,) * count,
        "tie_bytes": (0,) * len(plan.ties),
        "network": network,
        "feed": feed,
        **more,
    }
    return Costs.model_validate(raw)


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("count", "micros"), [(1, 4), (2, 4), (3, 8), (4, 16)])
def test_a_balanced_pipeline_takes_as_long_as_the_formula_says(order: Order, count: int, micros: int) -> None:
    plan = _line(count, micros, order)
    trace = simulate(plan, _costs(plan))
    assert trace.round_s == pytest.approx((micros + count - 1) * 3.0)
    assert trace.busy("a") == pytest.approx(micros / (micros + count - 1))


def test_a_slow_stage_sets_the_pace() -> None:
    plan = _line(2, 8)
    costs = Costs(
        devices=tuple(DeviceCost(device=d, forward_s=s, backward_s=s, message_s=0.0) for d, s in (("a", 1), ("b", 3))),
        activation_bytes=(0,), gradient_bytes=(0,), reduce_bytes=(0, 0),
    )  # fmt: skip
    assert simulate(plan, costs).round_s == pytest.approx(1 + 8 * 6 + 1)


def test_transfers_take_their_time_and_queue_on_a_link() -> None:
    plan = _line(2, 1)
    trace = simulate(
        plan, _costs(plan, activation_bytes=(250,), gradient_bytes=(500,), bytes_per_s=1000.0, message_s=0.5)
    )
    # forward 1, transfer 1 + 0.5, forward 1, backward 2, transfer 2 + 0.5, backward 2, then a vote of 0.5
    assert trace.round_s == pytest.approx(1 + 1.5 + 1 + 2 + 2.5 + 2 + 0.5)
    both = _line(2, 2, "gpipe")
    queued = simulate(both, _costs(both, 0.0, 0.0, activation_bytes=(250,), bytes_per_s=1000.0))
    ends = [move.end for move in queued.transfers if move.item.op.value == "SA"]
    assert ends == pytest.approx([1.0, 2.0])


def test_a_group_reduces_once_a_round() -> None:
    stage = Stage(lo=0, hi=1, shares=(Share(device="a", samples=2), Share(device="b", samples=2)), warm_up=1)
    plan = Plan(generation=1, stages=(stage,), micro_size=4, micro_count=3)
    trace = simulate(plan, _costs(plan, reduce_bytes=(1000,), bytes_per_s=1000.0))
    # half of the vector to the other one, half of the sum back; both directions at once
    assert trace.round_s == pytest.approx(3 * 3.0 + 0.5 + 0.5)


def test_the_broker_passes_a_chunk_on_when_it_has_all_of_it() -> None:
    plan = _line(2, 1)
    costs = _costs(plan, 0.0, 0.0, activation_bytes=(250,), bytes_per_s=1000.0, network=Network(chunk_bytes=100))
    (move,) = [m for m in simulate(plan, costs).transfers if m.item.op.value == "SA"]
    assert move.end == pytest.approx(1.1)
    whole = costs.model_copy(update={"network": Network(chunk_bytes=10_000)})
    assert simulate(plan, whole).transfers[0].end == pytest.approx(2.0)
    direct = costs.model_copy(update={"network": Network(direct=True)})
    assert simulate(plan, direct).transfers[0].end == pytest.approx(1.0)


def test_all_devices_share_the_link_of_the_broker() -> None:
    stage = Stage(lo=0, hi=1, shares=tuple(Share(device=d, samples=1) for d in "abcd"), warm_up=1)
    plan = Plan(generation=1, stages=(stage,), micro_size=4, micro_count=1)

    def seconds(network: Network) -> float:
        return simulate(plan, _costs(plan, 0.0, 0.0, reduce_bytes=(4000,), bytes_per_s=1000.0, network=network)).round_s

    # each device: 3 shards and 1 sum up, 3 shards and 3 sums down
    assert seconds(Network(chunk_bytes=1)) == pytest.approx(6.0, rel=0.01)
    assert seconds(Network(direct=True)) == pytest.approx(6.0)
    # 4 x (3 + 3) kB down through a broker whose own link is as slow as each of theirs
    assert seconds(Network(hub_bytes_per_s=1000.0, chunk_bytes=1)) == pytest.approx(24.0, rel=0.01)


def test_a_round_cannot_be_shorter_than_its_samples_need() -> None:
    plan = _line(2, 4)
    feed = FeedCost(sample_bytes=250.0, bytes_per_s=1000.0)
    quick = _costs(plan, bytes_per_s=1e6, feed=feed)
    assert simulate(plan, quick).round_s == pytest.approx((4 + 1) * 3.0)
    slow = quick.model_copy(update={"feed": feed.model_copy(update={"bytes_per_s": 100.0})})
    assert simulate(plan, slow).round_s == pytest.approx(16 * 250 / 100)
    own = quick.model_copy(update={"feed": FeedCost(sample_bytes=1e9, device="a")})
    assert simulate(plan, own).round_s == pytest.approx((4 + 1) * 3.0)  # the data lies on the first stage's device


def _with(costs: Costs, **changes: float) -> Costs:
    devices = tuple(device.model_copy(update=changes) for device in costs.devices)
    return Costs.model_validate({**costs.model_dump(), "devices": devices})  # a copy would keep what is cached


def test_bytes_on_the_wire_hold_up_what_computes_meanwhile() -> None:
    plan = _line(2, 4)
    costs = _costs(plan, activation_bytes=(250,), gradient_bytes=(250,), bytes_per_s=1e9)
    free, held = simulate(plan, costs), simulate(plan, _with(costs, wire_s_per_byte=1e-4))
    # Each device sends or receives 2 x 4 x 1000 bytes, 0.1 s each; all of them while it computes or before it does.
    assert free.round_s + 0.799 <= held.round_s <= free.round_s + 2 * 0.8
    assert simulate(plan, _with(costs, wire_s_per_byte=1e-4), record=False).round_s == held.round_s
    for device in plan.devices:
        spans = [span for span in held.spans if span.device == device and span.end > span.start]
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(spans))


def test_a_computation_is_as_much_longer_as_what_comes_while_it_runs() -> None:
    plan = _line(2, 2)
    costs = _costs(plan, 10.0, 10.0, activation_bytes=(250,), gradient_bytes=(0,), bytes_per_s=1e9)
    trace = simulate(plan, _with(costs, wire_s_per_byte=1e-3))
    forwards = [s.end - s.start for s in trace.spans if s.device == "b" and s.item.op.value == "F"]
    first = [s for s in trace.spans if s.device == "a" and s.item.op.value == "F"]
    # b takes 1 s to read what it begins with; the second micro-batch comes while it goes back through the first.
    assert forwards == pytest.approx([11.0, 10.0])
    # a sends the first while it computes the second
    assert [s.end - s.start for s in first] == pytest.approx([10.0, 11.0])


def test_a_reduction_computes() -> None:
    stage = Stage(lo=0, hi=1, shares=(Share(device="a", samples=2), Share(device="b", samples=2)), warm_up=1)
    plan = Plan(generation=1, stages=(stage,), micro_size=4, micro_count=3)
    costs = _costs(plan, reduce_bytes=(1000,), bytes_per_s=1000.0)
    assert simulate(plan, _with(costs, reduce_s=2.0)).round_s == pytest.approx(simulate(plan, costs).round_s + 2.0)


def test_no_random_plan_gets_stuck_and_k_is_kept() -> None:
    for seed in range(200):
        plan = random_plan(Random(seed))
        trace = simulate(plan, _costs(plan))
        assert trace.round_s > 0
        for device, peak in trace.peak_alive.items():
            most = plan.micro_count if plan.order == "gpipe" else plan.stages[plan.stage_of(device)].warm_up
            assert 1 <= peak <= most


def test_gantt_for_a_terminal() -> None:
    plan = _line(2, 2)
    text = gantt_text(plan, simulate(plan, _costs(plan)), 40)
    lines = text.plain.splitlines()
    assert lines[0].startswith(" 0 a ")
    assert "0" in lines[0]
    assert "b" in lines[1]
    assert lines[0].endswith("% busy")
    assert text.plain.endswith(LEGEND)
    assert max(len(line) for line in lines[:2]) <= 40


def test_gantt_as_svg_and_trace_for_a_browser() -> None:
    plan = _line(3, 4)
    trace = simulate(plan, _costs(plan))
    root = ElementTree.fromstring(gantt_svg(plan, trace))
    assert root.tag.endswith("svg")
    rectangles = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(rectangles) >= len(trace.spans)
    events = json.loads(trace.chrome())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"a", "b", "c"}
    assert sum(e["ph"] == "X" for e in events) == len(trace.spans) + len(trace.transfers)
