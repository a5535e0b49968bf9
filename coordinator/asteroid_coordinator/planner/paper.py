"""The planner ``asteroid-paper``: Algorithm 2 as published, to compare with.

All devices, in order of the memory that they lend, largest first; K = 2 (P - p) - 1; links of one direction, the
slowest of two groups counts; the closed formula decides, also between micro-batch sizes. Where it loses:
docs/planning.md.
"""

from __future__ import annotations

from asteroid_coordinator.planner.costing import costs_of
from asteroid_coordinator.planner.draft import draft
from asteroid_coordinator.planner.pipeline import Rules, solve
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_coordinator.planner.search import edges, pieces_of_found
from asteroid_coordinator.planner.tables import Tables
from asteroid_core.plan import Plan

EDGES = 48
"""More layers than that are coarsened first."""


def paper(problem: Problem, judge: Judge) -> Plan | None:
    """Return the plan that the published algorithm finds, with the round time that the simulator gives it."""
    wishes = problem.wishes
    tables = Tables(problem, edges(problem, EDGES))
    sites = problem.sites
    order = tuple(sorted(range(len(sites)), key=lambda i: (-sites[i].budget_mb, sites[i].name)))
    found = []
    for micro in wishes.micro_sizes:
        rules = Rules(micro, wishes.batch // micro, gpipe=wishes.order == "gpipe", skip=False, paper=True)
        if wishes.stages is not None:
            rules = Rules(micro, wishes.batch // micro, gpipe=rules.gpipe, stages=wishes.stages, skip=False, paper=True)
        found += [
            (one.seconds, micro, one) for one in solve(tables, order, rules) if wishes.stages in (None, len(one.cuts))
        ]
    for _, micro, one in sorted(found, key=lambda entry: entry[:2]):
        plan = draft(problem, pieces_of_found(problem, one), micro, planner="asteroid-paper")
        if plan is not None:
            return plan.model_copy(update={"predicted_s": judge(plan, costs_of(plan, problem))})
    return None
