"""PipeDream's planner (Narayanan et al., SOSP 2019): the fastest steady state on equal devices.

Its plan is run synchronously, as all plans here; only what it chooses is its own. It does not see that devices differ,
their memory, or how long a pipeline takes to fill.
"""

from __future__ import annotations

from asteroid_coordinator.planner.baselines.common import MeanDevice, by_memory, each_micro, even
from asteroid_coordinator.planner.draft import Piece, draft
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan

Shape = list[tuple[int, int, int]]
"""(first layer, one past the last, replicas) of each stage"""


def pipedream(problem: Problem, judge: Judge) -> Plan | None:
    """Return the plan of PipeDream's dynamic program, mapped to devices in order of their memory."""

    def make(micro: int) -> Plan | None:
        shape = _shape(problem, MeanDevice(problem, micro), micro)
        devices = len(problem.sites)
        sites, pieces = by_memory(problem), []
        for lo, hi, replicas in shape:
            group = tuple(site.name for site in sites[:replicas])
            sites = sites[replicas:]
            # In flight: as many micro-batches as the stages from here on have devices for each replica.
            left = replicas + len(sites)
            pieces.append(Piece(lo, hi, group, max(-(-min(left, devices) // shape[0][2]), 1)))
        pieces = [Piece(p.lo, p.hi, p.devices, max(q.warm_up for q in pieces[n:])) for n, p in enumerate(pieces)]
        return draft(problem, pieces, micro, planner="pipedream", order="1f1b", divide=even)

    return each_micro(problem, judge, make)


def _shape(problem: Problem, device: MeanDevice, micro: int) -> Shape:
    """A(j, m): slowest stage of the first j layers on m devices."""
    count, devices = problem.sums.count, len(problem.sites)

    def stage(lo: int, hi: int, replicas: int) -> float:
        if replicas > micro:
            return float("inf")
        weights = 2 * (replicas - 1) * problem.sums.trainable(lo, hi) / device.bytes_per_s
        return max(sum(device.compute(lo, hi, 1)), weights) / replicas

    best: dict[tuple[int, int], tuple[float, Shape]] = {}
    for m in range(1, devices + 1):
        for j in range(1, count + 1):
            choice: tuple[float, Shape] = (stage(0, j, m), [(0, j, m)])
            for last in range(1, m):
                for i in range(1, j):
                    before, shape = best[i, m - last]
                    slowest = max(before, sum(device.boundary(i)), stage(i, j, last))
                    if slowest < choice[0]:
                        choice = (slowest, [*shape, (i, j, last)])
            best[j, m] = choice
    return best[count, devices][1]
