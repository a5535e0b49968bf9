"""GPipe (Huang et al., NeurIPS 2019): one device a stage, all forwards, then all backwards."""

from __future__ import annotations

from collections.abc import Sequence

from asteroid_coordinator.planner.baselines.common import by_memory, each_micro
from asteroid_coordinator.planner.draft import Piece, draft
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan


def gpipe(problem: Problem, judge: Judge) -> Plan | None:
    """Return a pipeline over all devices, largest memory first, whose slowest stage is as fast as it can be.

    Args:
        problem: what to plan.
        judge: chooses among the micro-batch sizes.
    """

    def make(micro: int) -> Plan | None:
        sites = by_memory(problem)[: problem.sums.count]
        micros = problem.wishes.batch // micro
        cuts = balanced(problem, sites, micro, [micros] * len(sites))
        if cuts is None:
            return None
        pieces = [Piece(lo, hi, (site.name,), micros) for (lo, hi), site in zip(cuts, sites, strict=True)]
        return draft(problem, pieces, micro, planner="gpipe", order="gpipe")

    return each_micro(problem, judge, make)


def balanced(problem: Problem, sites: Sequence[Site], micro: int, alive: Sequence[int]) -> list[tuple[int, int]] | None:
    """Cut the layers so that the slowest stage is as fast as it can be, one device a stage, within its memory.

    Args:
        problem: times and memory.
        sites: the device of each stage.
        micro: samples of a micro-batch.
        alive: micro-batches alive at once in each stage.

    Returns:
        The layers of each stage; None if nothing fits.
    """
    count, stages = problem.sums.count, len(sites)
    best: list[tuple[float, int]] = [(0.0, 0)] + [(float("inf"), 0)] * count
    back: list[list[int]] = []
    for stage in range(stages):
        site = sites[stage]
        forward, backward = problem.times(site, micro)
        now: list[tuple[float, int]] = [(float("inf"), 0)] * (count + 1)
        for hi in range(stage + 1, count - (stages - stage - 1) + 1):
            for lo in range(hi - 1, stage - 1, -1):
                if not problem.fits(site, lo, hi, micro, alive[stage], 1):
                    break
                slowest = max(best[lo][0], forward[hi] - forward[lo] + backward[hi] - backward[lo])
                now[hi] = min(now[hi], (slowest, lo))
        back.append([lo for _, lo in now])
        best = now
    if best[count][0] == float("inf"):
        return None
    out, hi = [], count
    for choice in reversed(back):
        out.append((choice[hi], hi))
        hi = choice[hi]
    return out[::-1]
