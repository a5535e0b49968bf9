"""Finds a plan: device groups by enumeration, layer cuts by dynamic programming, shares by Algorithm 1.

Stages are filled from the last one backwards, so the k-th from the end knows its K (2k - 1) whatever their number is
(Asteroid, Algorithm 2). The best candidates by the closed formula are judged by the simulator.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

from asteroid_coordinator.planner.allocate import allocate
from asteroid_coordinator.planner.costing import costs_of, estimate
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_core.costs import Costs
from asteroid_core.plan import Plan, Share, Stage

JUDGED = 8
"""Candidates that are simulated."""
ENUMERATED = 7
"""Up to so many devices every division into groups is tried; beyond, only single devices and equal groups."""

Judge = Callable[[Plan, Costs], float]


def search(problem: Problem, generation: int, judge: Judge) -> Plan | None:
    """Return the best plan found, with its predicted round time, or None if nothing fits.

    Args:
        problem: what to plan.
        generation: of the plan.
        judge: round time of a plan under its costs, in seconds (the simulator).
    """
    best: list[tuple[float, int, Plan]] = []
    seen: set[str] = set()
    for number, plan in enumerate(_candidates(problem, generation)):
        text = plan.describe()
        if text in seen:
            continue
        seen.add(text)
        entry = (-estimate(plan, costs_of(plan, problem)), -number, plan)
        if len(best) < JUDGED:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
    if not best:
        return None
    judged = [(judge(plan, costs_of(plan, problem)), -number, plan) for _, number, plan in best]
    seconds, _, plan = min(judged)
    return plan.model_copy(update={"predicted_s": seconds})


def _candidates(problem: Problem, generation: int) -> Iterator[Plan]:
    for sites in _orders(problem):
        for groups in _groupings(sites):
            if problem.wishes.stages is not None and len(groups) != problem.wishes.stages:
                continue
            if len(groups) > problem.sums.count:
                continue
            for micro in problem.wishes.micro_sizes:
                plan = _fill(problem, groups, micro, generation)
                if plan is not None:
                    yield plan


def _orders(problem: Problem) -> Iterator[tuple[Site, ...]]:
    """Device orders to try: by memory and by speed, both ways; without the slowest unless all must take part."""

    def seconds(site: Site) -> float:
        return sum(problem.compute(site, 0, problem.sums.count, max(problem.wishes.micro_sizes)))

    by_speed = sorted(problem.sites, key=lambda s: (seconds(s), s.name))
    fewest = len(by_speed) if problem.wishes.all_devices else 1
    seen = set()
    for count in range(len(by_speed), fewest - 1, -1):
        kept = by_speed[:count]
        by_memory = sorted(kept, key=lambda s: (-s.budget_mb, s.name))
        for order in (kept, kept[::-1], by_memory, by_memory[::-1]):
            key = tuple(site.name for site in order)
            if key not in seen and problem.wishes.required <= set(key):
                seen.add(key)
                yield tuple(order)


def _groupings(sites: Sequence[Site]) -> Iterator[tuple[tuple[Site, ...], ...]]:
    """Divide a sequence of devices into contiguous groups."""
    count = len(sites)
    if count <= ENUMERATED:
        for cuts in itertools.product((False, True), repeat=count - 1):
            edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
            yield tuple(tuple(sites[a:b]) for a, b in itertools.pairwise(edges))
        return
    for size in range(1, count + 1):
        yield tuple(tuple(sites[i : i + size]) for i in range(0, count, size))


def _fill(problem: Problem, groups: Sequence[Sequence[Site]], micro: int, generation: int) -> Plan | None:
    """Cut the layers for these groups so that the slowest step of the pipeline is as fast as it can be."""
    if any(len(group) > micro for group in groups):
        return None
    micros = problem.wishes.batch // micro
    for policy in (2, 1):  # K = 2 (P - p) - 1; where memory is tight, K = P - p
        cuts = _cut(problem, groups, micro, micros, policy)
        if cuts is not None:
            return _plan(problem, groups, cuts, micro, micros, policy, generation)
    return None


def _warm_up(problem: Problem, from_end: int, micros: int, policy: int) -> int:
    """K of the stage that is the ``from_end``-th from the end (the last one is 1)."""
    if problem.wishes.order == "gpipe":
        return micros
    return min(2 * from_end - 1 if policy == 2 else from_end, micros)


def _cut(
    problem: Problem, groups: Sequence[Sequence[Site]], micro: int, micros: int, policy: int
) -> list[tuple[int, int, tuple[int, ...]]] | None:
    """Return (lo, hi, shares) of each stage; None if nothing fits."""
    count, stages = problem.sums.count, len(groups)
    slowest = min(site.profile.bytes_per_s for group in groups for site in group)
    # best[lo]: (slowest step, sum of steps) of the stages from here on, and where the first of them ends.
    best: list[tuple[float, float, int] | None] = [None] * (count + 1)
    best[count] = (0.0, 0.0, count)
    chosen: list[list[tuple[float, float, int] | None]] = []
    shares: dict[tuple[int, int, int], tuple[int, ...] | None] = {}
    for number in range(stages - 1, -1, -1):
        group, last = groups[number], number == stages - 1
        keep = _warm_up(problem, stages - number, micros, policy)
        now: list[tuple[float, float, int] | None] = [None] * (count + 1)
        for lo in range(count - (stages - number), number - 1, -1):
            if number == 0 and lo != 0:
                continue
            for hi in range(lo + 1, count + 1) if not last else (count,):
                rest = best[hi]
                if rest is None or (hi == count and not last):
                    continue
                split = allocate(problem, group, lo, hi, micro, keep)
                shares[number, lo, hi] = split
                if split is None:
                    break  # a longer run of layers does not fit either
                seconds = _seconds(problem, group, lo, hi, split)
                cross = 0.0 if last else micro * max(problem.sums.boundary(hi)) / slowest
                entry = (max(seconds, cross, rest[0]), seconds + cross + rest[1], hi)
                old = now[lo]
                if old is None or entry < old:
                    now[lo] = entry
                if old is not None and seconds > old[0]:
                    break  # the stage only gets slower from here on
        chosen.append(now)
        best = now
    if best[0] is None:
        return None
    out, lo = [], 0
    for number, table in enumerate(reversed(chosen)):
        entry_ = table[lo]
        assert entry_ is not None
        hi = entry_[2]
        split = shares[number, lo, hi]
        assert split is not None
        out.append((lo, hi, split))
        lo = hi
    return out


def _seconds(problem: Problem, group: Sequence[Site], lo: int, hi: int, split: Sequence[int]) -> float:
    """Forward and backward of the slowest device (each maximum apart, Asteroid, Eq. 8)."""
    times = [problem.compute(site, lo, hi, samples) for site, samples in zip(group, split, strict=True)]
    return max(f for f, _ in times) + max(b for _, b in times)


def _plan(
    problem: Problem,
    groups: Sequence[Sequence[Site]],
    cuts: Sequence[tuple[int, int, tuple[int, ...]]],
    micro: int,
    micros: int,
    policy: int,
    generation: int,
) -> Plan:
    stages = []
    for number, (group, (lo, hi, split)) in enumerate(zip(groups, cuts, strict=True)):
        shares = tuple(Share(device=s.name, samples=n) for s, n in zip(group, split, strict=True) if n)
        keep = _warm_up(problem, len(groups) - number, micros, policy)
        stages.append(Stage(lo=lo, hi=hi, shares=shares, warm_up=keep))
    return Plan(
        generation=generation,
        stages=tuple(stages),
        micro_size=micro,
        micro_count=micros,
        order=problem.wishes.order,
        ties=problem.ties([(lo, hi) for lo, hi, _ in cuts]),
        planner="asteroid",
    )
