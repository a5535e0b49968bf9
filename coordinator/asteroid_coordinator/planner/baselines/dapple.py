"""DAPPLE's planner (Fan et al., PPoPP 2021): hybrid pipelines for equal devices, with fill, pivot and drain.

It does not see that devices differ, nor their memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from asteroid_coordinator.planner.baselines.common import MeanDevice, by_memory, even, fastest
from asteroid_coordinator.planner.draft import draft, warm_ups
from asteroid_coordinator.planner.formula import Step
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan

Shape = list[tuple[int, int, int]]
"""(first layer, one past the last, replicas) of each stage"""


def dapple(problem: Problem, judge: Judge) -> Plan | None:
    """Return the plan of DAPPLE's search, mapped to devices in order of their memory; warm-up policy A or B."""
    plans = []
    for micro in problem.wishes.micro_sizes:
        shape = _shape(problem, MeanDevice(problem, micro), micro, problem.wishes.batch // micro)
        if shape is None:
            continue
        sites, stages = by_memory(problem), []
        for lo, hi, replicas in shape:
            stages.append((lo, hi, tuple(site.name for site in sites[:replicas])))
            sites = sites[replicas:]
        for wide in (True, False):
            plans.append(draft(problem, warm_ups(stages, wide), micro, planner="dapple", order="1f1b", divide=even))
    return fastest(problem, judge, plans)


def latency(steps: Sequence[Step], micros: int) -> float:
    """Return DAPPLE's L = T_w + T_s + T_e around its pivot step (section on the objective)."""
    pivot = len(steps) - 1
    for s in range(len(steps) - 2, -1, -1):
        between = sum(step.both for step in steps[s + 1 : pivot])
        if (micros - 1) * steps[s].both > (micros - 1) * steps[pivot].both + between:
            pivot = s
    fill = sum(step.forward for step in steps[: pivot + 1])
    steady = (micros - 1) * steps[pivot].both
    ends = []
    for s, step in enumerate(steps):
        if s <= pivot:
            ends.append(step.allreduce + sum(x.backward for x in steps[s : pivot + 1]))
        else:
            ends.append(step.allreduce - sum(x.backward for x in steps[pivot:s]))
    return fill + steady + max(ends)


def _shape(problem: Problem, device: MeanDevice, micro: int, micros: int) -> Shape | None:
    """Best stages by L: the dynamic program keeps, for layers and devices done, the best with the rest as one stage."""
    count, devices = problem.sums.count, len(problem.sites)

    def compute(lo: int, hi: int, replicas: int) -> Step:
        return Step(*device.compute(lo, hi, replicas), device.allreduce(lo, hi, replicas))

    def move(at: int) -> Step:
        return Step(*device.boundary(at))

    def whole(steps: list[Step], lo: int, left: int) -> float:
        rest = [compute(lo, count, left)]
        return latency([*steps, move(lo), *rest] if steps else rest, micros)

    Entry = tuple[float, list[Step], Shape]
    table: dict[tuple[int, int], Entry] = {
        (0, 0): (whole([], 0, devices) if devices <= micro else float("inf"), [], [])
    }
    for m in range(1, devices):
        for j in range(1, count):
            if devices - m > micro:
                continue
            best: Entry | None = None
            for used in range(max(m - micro, 0), m):
                for i in range(j):
                    before = table.get((i, used))
                    if before is None:
                        continue
                    steps = [*before[1], *([move(i)] if before[1] else []), compute(i, j, m - used)]
                    seconds = whole(steps, j, devices - m)
                    if best is None or seconds < best[0]:
                        best = (seconds, steps, [*before[2], (i, j, m - used)])
            if best is not None:
                table[j, m] = best
    (j, m), (seconds, _, shape) = min(table.items(), key=lambda item: item[1][0])
    return [*shape, (j, count, devices - m)] if seconds < float("inf") else None
