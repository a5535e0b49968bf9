"""HetPipe (Park et al., ATC 2020): virtual workers, each a pipeline, data-parallel through parameter servers.

A wave is the job's batch, divided evenly among the virtual workers; after it each pushes the gradient of the whole
model and pulls the weights (clock distance 0, so that a wave means what a round means elsewhere). The servers are
spread over all devices, the kindest placement for slow links. This is a set of plans that is simulated, not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from asteroid_coordinator.planner.baselines.common import by_memory, fastest
from asteroid_coordinator.planner.baselines.gpipe import balanced
from asteroid_coordinator.planner.draft import draft, warm_ups
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan


@dataclass(frozen=True)
class PlanSet:
    """Pipelines that work side by side.

    Attributes:
        plans: one a virtual worker.
        seconds: of a wave, with the exchange of gradients and weights.
    """

    plans: tuple[Plan, ...]
    seconds: float


def hetpipe(problem: Problem, judge: Judge) -> PlanSet | None:
    """Return the fastest set of virtual workers, or None if nothing fits.

    Args:
        problem: what to plan.
        judge: the simulator.
    """
    best: PlanSet | None = None
    count = len(problem.sites)
    for workers in (v for v in range(1, count + 1) if count % v == 0 and problem.wishes.batch % v == 0):
        for groups in _partitions(by_memory(problem), workers):
            plans = [_worker(problem, judge, group, problem.wishes.batch // workers) for group in groups]
            whole = [plan for plan in plans if plan is not None]
            if len(whole) < workers:
                continue
            seconds = max(plan.predicted_s or 0.0 for plan in whole) + _exchange(problem, whole)
            if best is None or seconds < best.seconds:
                best = PlanSet(tuple(whole), seconds)
    return best


def _partitions(sites: Sequence[Site], workers: int) -> Iterator[list[list[Site]]]:
    """Equal devices together (node partition), or the same mix in each (equal distribution)."""
    size = len(sites) // workers
    yield [list(sites[i * size : (i + 1) * size]) for i in range(workers)]
    if 1 < workers < len(sites):
        yield [list(sites[i::workers]) for i in range(workers)]


def _worker(problem: Problem, judge: Judge, sites: Sequence[Site], batch: int) -> Plan | None:
    """The pipeline of one virtual worker: the slowest stage as fast as it can be, within memory."""
    sites = sites[: problem.sums.count]
    sizes = tuple(size for size in problem.wishes.micro_sizes if batch % size == 0)
    part = replace(
        problem,
        sites=tuple(sites),
        wishes=replace(problem.wishes, batch=batch, micro_sizes=sizes, required=frozenset()),
    )
    plans = []
    for micro in sizes:
        for wide in (True, False):
            shape = [piece.warm_up for piece in warm_ups([(0, 1, (s.name,)) for s in sites], wide)]
            cuts = balanced(part, sites, micro, [min(keep, batch // micro) for keep in shape])
            if cuts is not None:
                stages = [(lo, hi, (site.name,)) for (lo, hi), site in zip(cuts, sites, strict=True)]
                plans.append(draft(part, warm_ups(stages, wide), micro, planner="hetpipe", order="1f1b"))
                break
    return fastest(part, judge, plans)


def _exchange(problem: Problem, plans: Sequence[Plan]) -> float:
    """Seconds to push all gradients and to pull all weights: the busiest link, then the other direction."""
    if len(plans) == 1:
        return 0.0
    whole = problem.sums.trainable(0, problem.sums.count)
    served = len(plans) * whole / len(problem.sites)
    rate = {site.name: site.profile.bytes_per_s for site in problem.sites}
    own = dict.fromkeys(rate, 0)
    for plan in plans:
        for stage in plan.stages:
            own[stage.leader] = problem.sums.trainable(stage.lo, stage.hi)
    once = max(max(own[name], served) / rate[name] for name in rate)
    if not problem.network.direct and problem.network.hub_bytes_per_s is not None:
        once = max(once, len(plans) * whole / problem.network.hub_bytes_per_s)
    return 2 * once
