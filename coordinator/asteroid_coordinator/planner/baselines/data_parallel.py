"""One stage on every device or on one: on-device training, even data parallelism, and EDDL's uneven one."""

from __future__ import annotations

from asteroid_coordinator.planner.allocate import allocate
from asteroid_coordinator.planner.baselines.common import each_micro, even, fastest
from asteroid_coordinator.planner.draft import Divide, Piece, draft
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan


def on_device(problem: Problem, judge: Judge) -> Plan | None:
    """Return the fastest device alone: the whole model, gradients accumulated over micro-batches."""
    last = problem.sums.count
    return fastest(
        problem,
        judge,
        (
            draft(problem, [Piece(0, last, (site.name,), 1)], micro, planner="on-device", order="1f1b")
            for site in problem.sites
            for micro in problem.wishes.micro_sizes
            if all(not problem.wishes.must(other.name) for other in problem.sites if other is not site)
        ),
    )


def data_parallel(problem: Problem, judge: Judge) -> Plan | None:
    """Return conventional data parallelism: the whole model on every device, an even share, one allreduce a round."""
    return _all(problem, judge, "dp", even)


def eddl(problem: Problem, judge: Judge) -> Plan | None:
    """Return EDDL (Hao and Zhang, SEC 2021): data parallelism with shares that follow speed and memory."""
    return _all(problem, judge, "eddl", allocate)


def _all(problem: Problem, judge: Judge, name: str, divide: Divide) -> Plan | None:
    everybody = Piece(0, problem.sums.count, tuple(site.name for site in problem.sites), 1)
    return each_micro(
        problem,
        judge,
        lambda micro: (
            draft(problem, [everybody], micro, planner=name, order="1f1b", divide=divide)
            if micro >= len(problem.sites)
            else None
        ),
    )
