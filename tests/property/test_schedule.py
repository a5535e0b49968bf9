"""Schedules are free of deadlock and hold at most K micro-batches, over thousands of random plans."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plans import Lossless, random_plan

from asteroid_core.plan import Plan, Share, Stage
from asteroid_core.rounds import validation_micros
from asteroid_core.routing import clip, forward_routes
from asteroid_core.schedule import Instruction, Op, forward_schedule, schedule, text
from asteroid_core.walker import ScheduleWalker

PLANS = int(os.environ.get("ASTEROID_PLANS", "2000"))


def test_training_never_deadlocks_and_holds_at_most_k() -> None:
    for seed in range(PLANS):
        random = Random(seed)
        plan = random_plan(random)
        walkers = {device: ScheduleWalker(schedule(plan, device)) for device in plan.devices}
        net = Lossless(plan, [plan.micro_size] * plan.micro_count, walkers, random)
        net.run()
        stuck = {d: str(w.waiting_for) for d, w in walkers.items() if not w.finished}
        assert not stuck, f"seed {seed}: {stuck} in {plan.describe()}"
        assert not net.early_step, f"seed {seed}: {net.early_step} stepped before every vote"
        assert not any(net.left.values()), f"seed {seed}: sends without a receive"
        for device, walker in walkers.items():
            stage = plan.stages[plan.stage_of(device)]
            most = plan.micro_count if plan.order == "gpipe" else min(stage.warm_up, plan.micro_count)
            assert walker.peak <= most, f"seed {seed}: {device} held {walker.peak} of {most}"
            assert walker.alive == 0
            for op in (Op.FORWARD, Op.BACKWARD, Op.FREE):
                numbers = sorted(i.number or 0 for i in net.done[device] if i.op is op)
                assert numbers == list(range(plan.micro_count))


def test_validation_never_deadlocks_whatever_the_last_micro_batch() -> None:
    for seed in range(PLANS // 4):
        random = Random(seed)
        plan = random_plan(random)
        rows = validation_micros(random.randint(1, 5 * plan.micro_size), plan.micro_size)
        walkers = {device: ScheduleWalker(forward_schedule(plan, device, rows)) for device in plan.devices}
        net = Lossless(plan, rows, walkers, random)
        net.run()
        assert all(w.finished and w.alive == 0 for w in walkers.values()), f"seed {seed}"
        for stage in plan.stages:
            for micro, count in enumerate(rows):
                for device in clip(stage, count):
                    assert any(i.op is Op.FORWARD and i.number == micro for i in net.done[device])


def test_text_form_of_a_small_pipeline() -> None:
    stages = tuple(
        Stage(lo=i, hi=i + 1, shares=(Share(device=name, samples=2),), warm_up=2 * (2 - i) - 1)
        for i, name in enumerate("ab")
    )
    plan = Plan(generation=1, stages=stages, micro_size=2, micro_count=4)
    assert text(schedule(plan, "a")) == (
        "0RA0 0F0 0SA0 0RA1 0F1 0SA1 0RA2 0F2 0SA2 0RG0 0B0 0X0 0RA3 0F3 0SA3 0RG1 0B1 0X1 0RG2 0B2 0X2 0RG3 0B3 0X3 "
        "0V 0RV 0O"
    )
    assert text(schedule(plan, "b")) == (
        "1RA0 1RT0 1F0 1B0 1X0 1SG0 1RA1 1RT1 1F1 1B1 1X1 1SG1 1RA2 1RT2 1F2 1B2 1X2 1SG2 1RA3 1RT3 1F3 1B3 1X3 1SG3 "
        "1V 1RV 1O"
    )
    assert text(forward_schedule(plan, "b", (2, 1))) == "1RA0 1RT0 1F0 1X0 1RA1 1RT1 1F1 1X1"


def test_a_plan_that_would_wait_for_ever_is_refused() -> None:
    stages = tuple(
        Stage(lo=i, hi=i + 1, shares=(Share(device=name, samples=1),), warm_up=i + 1) for i, name in enumerate("ab")
    )
    with pytest.raises(ValueError, match="rise along the stages"):
        Plan(generation=1, stages=stages, micro_size=1, micro_count=4)
    assert Plan(generation=1, stages=stages, micro_size=1, micro_count=1).micro_count == 1


@given(st.sampled_from(list(Op)), st.integers(0, 99), st.none() | st.integers(0, 999))
def test_instructions_survive_their_text_form(op: Op, stage: int, number: int | None) -> None:
    item = Instruction(stage, op, number)
    assert Instruction.parse(str(item)) == item


@pytest.mark.parametrize("bad", ["", "F0", "2", "2Z0", "2F0 ", "-1F0"])
def test_what_is_no_instruction_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="not an instruction"):
        Instruction.parse(bad)


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_routes_cover_each_row_once(seed: int, rows: int) -> None:
    plan = random_plan(Random(seed))
    rows = min(rows, plan.micro_size)
    for number in range(len(plan.stages) - 1):
        routes = forward_routes(plan, number, rows)
        assert sorted(row for r in routes for row in range(r.lo, r.hi)) == list(range(rows))
        sources, targets = clip(plan.stages[number], rows), clip(plan.stages[number + 1], rows)
        for route in routes:
            assert sources[route.source][0] <= route.lo < route.hi <= sources[route.source][1]
            assert targets[route.target][0] <= route.lo < route.hi <= targets[route.target][1]
