"""Plans a job: who trains which layers on how many samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asteroid_coordinator.planner.costing import costs_of, memory_of
from asteroid_coordinator.planner.fixed import fixed_plan
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refuse import refusal
from asteroid_coordinator.planner.search import Judge, search
from asteroid_coordinator.simulator.engine import simulate
from asteroid_core.costs import Costs
from asteroid_core.errors import InputError
from asteroid_core.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """A plan and what it was judged by.

    Attributes:
        plan: with its predicted round time.
        costs: of every piece of a round.
        memory: for each device, megabytes needed and lent.
    """

    plan: Plan
    costs: Costs
    memory: dict[str, tuple[float, float]]


Planner = Callable[[Problem, int, Judge], Plan | None]

PLANNERS: dict[str, Planner] = {"asteroid": search}
"""By the name that ``plan.planner`` gives."""


def round_time(plan: Plan, costs: Costs) -> float:
    """Seconds of a round, simulated."""
    return simulate(plan, costs).round_s


def make_plan(problem: Problem, generation: int, planner: str = "asteroid", fixed: str | None = None) -> Outcome:
    """Return a plan.

    Args:
        problem: what to plan.
        generation: of the plan.
        planner: name of the planner.
        fixed: a plan by hand instead.

    Raises:
        InputError: an unknown planner, or a plan by hand that cannot be used.
        PlanError: nothing fits; says which device lacks what.
    """
    if fixed is not None:
        plan: Plan | None = fixed_plan(fixed, problem, generation)
        assert plan is not None
        plan = plan.model_copy(update={"predicted_s": round_time(plan, costs_of(plan, problem))})
    elif planner not in PLANNERS:
        raise InputError(f"There is no planner {planner}.", f"Planners: {', '.join(sorted(PLANNERS))}.")
    else:
        plan = PLANNERS[planner](problem, generation, round_time)
    if plan is None:
        raise refusal(problem)
    return Outcome(plan, costs_of(plan, problem), memory_of(plan, problem))
