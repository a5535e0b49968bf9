"""Turns a plan into its costs and into the memory that it needs."""

from __future__ import annotations

from asteroid_coordinator.planner.problem import Problem
from asteroid_core.costs import Costs, DeviceCost
from asteroid_core.plan import Plan


def costs_of(plan: Plan, problem: Problem) -> Costs:
    """Return the measured cost of every piece of a round of this plan."""
    devices, reduce_bytes = [], []
    for stage in plan.stages:
        reduced = problem.sums.trainable(stage.lo, stage.hi) if len(stage.shares) > 1 else 0
        for share in stage.shares:
            site = problem.site[share.device]
            forward, backward = problem.compute(site, stage.lo, stage.hi, share.samples)
            devices.append(
                DeviceCost.model_construct(
                    device=share.device,
                    forward_s=forward,
                    backward_s=backward,
                    step_s=problem.step(site, stage.lo, stage.hi),
                    bytes_per_s=site.profile.bytes_per_s,
                    message_s=site.profile.message_s,
                    reduce_s=reduced * site.profile.reduce_s_per_byte,
                    wire_s_per_byte=site.profile.wire_s_per_byte,
                )
            )
        reduce_bytes.append(problem.sums.trainable(stage.lo, stage.hi))
    cuts = [problem.sums.boundary(stage.lo) for stage in plan.stages[1:]]
    return Costs.model_construct(
        devices=tuple(devices),
        activation_bytes=tuple(forward for forward, _ in cuts),
        gradient_bytes=tuple(backward for _, backward in cuts),
        reduce_bytes=tuple(reduce_bytes),
        tie_bytes=tuple(problem.tied[tie.name].size for tie in plan.ties),
        network=problem.network,
        feed=problem.feed,
    )


def memory_of(plan: Plan, problem: Problem) -> dict[str, tuple[float, float]]:
    """For each device: megabytes that the plan needs there, and the megabytes that its owner lends."""
    out = {}
    for stage in plan.stages:
        for share in stage.shares:
            site = problem.site[share.device]
            need = problem.memory(
                site, stage.lo, stage.hi, share.samples, alive(plan, stage.warm_up), len(stage.shares)
            )
            out[share.device] = (need.total / 1e6, site.budget_mb)
    return out


def fits(plan: Plan, problem: Problem) -> bool:
    """Whether every device lends what the plan needs there."""
    return all(
        problem.fits(
            problem.site[share.device],
            stage.lo,
            stage.hi,
            share.samples,
            alive(plan, stage.warm_up),
            len(stage.shares),
        )
        for stage in plan.stages
        for share in stage.shares
    )


def alive(plan: Plan, warm_up: int) -> int:
    """Micro-batches whose activations are alive at once."""
    return plan.micro_count if plan.order == "gpipe" else min(warm_up, plan.micro_count)
