"""Turns a plan into its costs, and costs into a quick estimate of the round time."""

from __future__ import annotations

from collections.abc import Mapping

from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_core.costs import Costs, DeviceCost
from asteroid_core.plan import Plan


def costs_of(plan: Plan, problem: Problem) -> Costs:
    """Return the measured cost of every piece of a round of this plan."""
    sites = {site.name: site for site in problem.sites}
    devices, reduce_bytes = [], []
    for stage in plan.stages:
        for share in stage.shares:
            site = sites[share.device]
            forward, backward = problem.compute(site, stage.lo, stage.hi, share.samples)
            step = problem.step(site, stage.lo, stage.hi)
            devices.append(DeviceCost(device=share.device, forward_s=forward, backward_s=backward, step_s=step))
        reduce_bytes.append(problem.sums.trainable(stage.lo, stage.hi))
    cuts = [problem.sums.boundary(stage.lo) for stage in plan.stages[1:]]
    profiles = [sites[device].profile for device in plan.devices]
    return Costs(
        devices=tuple(devices),
        activation_bytes=tuple(forward for forward, _ in cuts),
        gradient_bytes=tuple(backward for _, backward in cuts),
        reduce_bytes=tuple(reduce_bytes),
        tie_bytes=tuple(problem.tied[tie.name].size for tie in plan.ties),
        bytes_per_s=min(p.bytes_per_s for p in profiles),
        message_s=max(p.message_s for p in profiles),
    )


def estimate(plan: Plan, costs: Costs) -> float:
    """Round time by the closed formula (Asteroid, Eq. 4 to 6 and 11, with the aligned dominant step), in seconds.

    The broker is the hub, so an allreduce of g devices moves 2 (g - 1) / g of the vector up and down each one's link.
    """
    by_name: Mapping[str, DeviceCost] = {cost.device: cost for cost in costs.devices}
    steps: list[tuple[float, float, float]] = []
    for number, stage in enumerate(plan.stages):
        if number:
            moved = plan.micro_size / costs.bytes_per_s
            steps.append(
                (
                    costs.activation_bytes[number - 1] * moved + costs.message_s,
                    costs.gradient_bytes[number - 1] * moved + costs.message_s,
                    0.0,
                )
            )
        members = [by_name[device] for device in stage.devices]
        group = len(members)
        reduce_s = 0.0
        if group > 1:
            reduce_s = 2 * (group - 1) / group * costs.reduce_bytes[number] / costs.bytes_per_s + 2 * costs.message_s
        steps.append((max(m.forward_s for m in members), max(m.backward_s for m in members), reduce_s))
    both = [forward + backward for forward, backward, _ in steps]
    before = [0.0]
    for value in both:
        before.append(before[-1] + value)
    micros = plan.micro_count
    dominant = max(range(len(steps)), key=lambda c: micros * both[c] + before[c])
    execute = micros * both[dominant]
    waiting, longest = 0.0, 0.0
    for number, (forward, _, reduce_s) in enumerate(steps):
        longest = max(longest, waiting + max(execute + before[dominant] - before[number], 0.0) + reduce_s)
        waiting += forward
    return longest + max(cost.step_s for cost in costs.devices) + 2 * costs.message_s


def memory_of(plan: Plan, problem: Problem) -> dict[str, tuple[float, float]]:
    """For each device: megabytes that the plan needs there, and the megabytes that its owner lends."""
    sites: dict[str, Site] = {site.name: site for site in problem.sites}
    out = {}
    for stage in plan.stages:
        for share in stage.shares:
            site = sites[share.device]
            need = problem.memory(
                site, stage.lo, stage.hi, share.samples, alive(plan, stage.warm_up), len(stage.shares)
            )
            out[share.device] = (need.total / 1e6, site.budget_mb)
    return out


def alive(plan: Plan, warm_up: int) -> int:
    """Micro-batches whose activations are alive at once."""
    return plan.micro_count if plan.order == "gpipe" else min(warm_up, plan.micro_count)
