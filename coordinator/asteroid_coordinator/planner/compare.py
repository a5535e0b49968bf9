"""What a planner's answer to a problem comes to, judged by the one simulator: comparable between planners."""

from __future__ import annotations

from dataclasses import dataclass, field

from asteroid_coordinator.planner import PLANNERS, make_plan, round_time
from asteroid_coordinator.planner.baselines.hetpipe import hetpipe
from asteroid_coordinator.planner.costing import costs_of, memory_of
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.simulator.engine import simulate
from asteroid_coordinator.simulator.trace import Trace
from asteroid_core.costs import Costs
from asteroid_core.errors import PlanError
from asteroid_core.plan import Plan

HETPIPE = "hetpipe"
NAMES = (*(name for name in PLANNERS if name != "exhaustive"), HETPIPE, "exhaustive")
"""All planners: those that yield a plan, and hetpipe, whose set of plans can only be simulated."""


@dataclass(frozen=True)
class Verdict:
    """A planner's answer.

    Attributes:
        planner: its name.
        plans: one plan; several pipelines for hetpipe; none if nothing fits.
        round_s: simulated seconds of a round of the whole batch; None if nothing fits.
        costs: of the first plan.
        trace: the simulated round of the first plan.
        memory: for each device of the plans, megabytes needed and lent.
        why: one sentence if nothing fits.
    """

    planner: str
    plans: tuple[Plan, ...] = ()
    round_s: float | None = None
    costs: Costs | None = None
    trace: Trace | None = None
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)
    why: str = ""


def evaluate(problem: Problem, planner: str) -> Verdict:
    """Ask a planner and simulate what it answers.

    Raises:
        InputError: there is no such planner, or the problem is not for it.
    """
    if planner == HETPIPE:
        found = hetpipe(problem, round_time)
        if found is None:
            return Verdict(planner, why="No division into pipelines fits into memory.")
        first = found.plans[0]
        costs = costs_of(first, problem)
        memory = {device: need for plan in found.plans for device, need in memory_of(plan, problem).items()}
        return Verdict(planner, found.plans, found.seconds, costs, simulate(first, costs), memory)
    try:
        outcome = make_plan(problem, 1, planner)
    except PlanError as error:
        return Verdict(planner, why=error.what)
    trace = simulate(outcome.plan, outcome.costs)
    return Verdict(planner, (outcome.plan,), trace.round_s, outcome.costs, trace, outcome.memory)
