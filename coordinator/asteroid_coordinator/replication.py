"""Chooses who keeps copies of whose snapshots, and how often snapshots are taken. Pure.

A stage of several devices needs no copies: its members hold the same weights, and each keeps its own snapshots. A stage
of one device sends them to a backup (Asteroid, section on topology-driven model replication, there to the next stage;
here to whoever has the memory and the fastest link, the next stage first among equals).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asteroid_coordinator.planner.costing import memory_of
from asteroid_coordinator.planner.problem import Problem
from asteroid_core.plan import Plan, Stage
from asteroid_core.spec import ReplicationSpec

KEPT = 2
"""Snapshots of a stage that are kept at the turn: the durable one and the next."""
PACK_BYTES_PER_S = 250e6
"""Speed at which a small device copies its state: what a Raspberry Pi 4 reaches with one core."""
SLACK = 1.5
"""A snapshot has so much more time than its transfer takes, before the next one would have to wait for it."""


@dataclass(frozen=True)
class Replicated:
    """A plan with backups.

    Attributes:
        plan: with ``Stage.backups``.
        every: rounds between snapshots; 0: only checkpoints.
        note: what a person should know; empty if all is well.
    """

    plan: Plan
    every: int
    note: str = ""


def replicate(problem: Problem, plan: Plan, spec: ReplicationSpec) -> Replicated:
    """Give each stage of one device a backup, and choose the interval.

    Args:
        problem: what the plan was made for (with memory for snapshots).
        plan: without backups.
        spec: of the job.
    """
    if spec.every == 0:
        return Replicated(plan, 0)
    if len(plan.devices) == 1:
        return Replicated(plan, 0, "one device trains alone: a loss goes back to the last checkpoint")
    spare = {device: (lent - need) * 1e6 for device, (need, lent) in memory_of(plan, problem).items()}
    stages: list[Stage] = []
    for number, stage in enumerate(plan.stages):
        if len(stage.shares) > 1:
            stages.append(stage)
            continue
        need = KEPT * _state(problem, stage)
        backup = _backup(problem, plan, number, need, spare)
        if backup is None:
            return Replicated(
                plan,
                0,
                f"no device has the {need / 1e6:.0f} MB left that copies of {stage.leader}'s stage need: "
                "a loss goes back to the last checkpoint",
            )
        spare[backup] -= need
        stages.append(stage.model_copy(update={"backups": (backup,)}))
    backed = plan.model_copy(update={"stages": tuple(stages)})
    if spec.every != "auto":
        return Replicated(backed, spec.every)
    return _interval(problem, backed, spec)


def copies_mb(problem: Problem, plan: Plan) -> dict[str, float]:
    """Megabytes of other devices' snapshots that each backup keeps, beside what its own stage needs."""
    out: dict[str, float] = {}
    for stage in plan.stages:
        for backup in stage.backups:
            out[backup] = out.get(backup, 0.0) + KEPT * _state(problem, stage) / 1e6
    return out


def _state(problem: Problem, stage: Stage) -> int:
    return problem.sums.state(stage.lo, stage.hi, problem.optimizer)


def _backup(problem: Problem, plan: Plan, number: int, need: int, spare: dict[str, float]) -> str | None:
    """The device with room for the copies and the fastest link; the next stage first, the first after the last."""
    stage = plan.stages[number]
    behind = [(number + step) % len(plan.stages) for step in range(1, len(plan.stages))]
    best: tuple[float, int, float, str] | None = None
    for distance, other in enumerate(behind):
        for device in plan.stages[other].devices:
            if spare[device] < need:
                continue
            rank = (-_speed(problem, stage.leader, device), distance, -spare[device], device)
            if best is None or rank < best:
                best = rank
    return best[3] if best is not None else None


def _speed(problem: Problem, a: str, b: str) -> float:
    """Bytes per second between two devices; to two digits, since measured links are never quite equal."""
    speed = min(problem.site[a].profile.bytes_per_s, problem.site[b].profile.bytes_per_s)
    return float(f"{speed:.1e}") if math.isfinite(speed) else speed


def snapshot_s(problem: Problem, plan: Plan) -> tuple[float, float]:
    """What one snapshot of all stages costs: seconds that training stands or is slowed down, and of the transfer.

    The copy in memory stops a device. The transfer goes in the gaps of its link; what it takes from training is the
    part of the time in which the link is busy anyway.
    """
    stop = slowed = 0.0
    links: dict[tuple[str, bool], float] = {}
    for stage in plan.stages:
        size = _state(problem, stage)
        stop = max(stop, size / PACK_BYTES_PER_S)
        for backup in stage.backups:
            seconds = size / _speed(problem, stage.leader, backup)
            for end in ((stage.leader, True), (backup, False)):  # several stages may have the same backup
                links[end] = links.get(end, 0.0) + seconds
            slowed = max(slowed, seconds * max(_busy(problem, plan, stage.leader), _busy(problem, plan, backup)))
    return stop + slowed, max(links.values(), default=0.0)


def _busy(problem: Problem, plan: Plan, device: str) -> float:
    """Part of a round in which the device's link carries activations and gradients (each way, the larger one)."""
    if not plan.predicted_s:
        return 1.0
    number = plan.stage_of(device)
    stage = plan.stages[number]
    share = next(s.samples for s in stage.shares if s.device == device)
    out = back = 0
    if number > 0:
        forward, backward = problem.sums.boundary(stage.lo)
        out, back = out + backward, back + forward
    if number + 1 < len(plan.stages):
        forward, backward = problem.sums.boundary(stage.hi)
        out, back = out + forward, back + backward
    size = max(out, back) * share * plan.micro_count
    if len(stage.shares) > 1:
        size += 2 * problem.sums.trainable(stage.lo, stage.hi)
    return min(1.0, size / problem.site[device].profile.bytes_per_s / plan.predicted_s)


def _interval(problem: Problem, plan: Plan, spec: ReplicationSpec) -> Replicated:
    """As often as the budget allows, at least as often as the largest loss asks, never faster than a transfer."""
    round_s = plan.predicted_s
    if not round_s:
        return Replicated(plan, 1)
    cost, transfer = snapshot_s(problem, plan)
    least = max(1, math.ceil(SLACK * transfer / round_s))
    wanted = max(least, math.ceil(cost / (spec.budget * round_s)))
    most = max(least, math.floor(spec.max_loss_s / round_s))
    if wanted <= most:
        return Replicated(plan, wanted)
    part = cost / (most * round_s)
    note = f"snapshots every {most} rounds cost about {part:.0%} of the time, so that a loss costs no more work"
    return Replicated(plan, most, note)
