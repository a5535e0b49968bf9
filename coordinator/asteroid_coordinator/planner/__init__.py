"""Plans a job: who trains which layers on how many samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asteroid_coordinator.planner.baselines.dapple import dapple
from asteroid_coordinator.planner.baselines.data_parallel import data_parallel, eddl, on_device
from asteroid_coordinator.planner.baselines.gpipe import gpipe
from asteroid_coordinator.planner.baselines.pipedream import pipedream
from asteroid_coordinator.planner.costing import costs_of, memory_of
from asteroid_coordinator.planner.exhaustive import exhaustive
from asteroid_coordinator.planner.fixed import fixed_plan
from asteroid_coordinator.planner.paper import paper
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_coordinator.planner.refuse import refusal
from asteroid_coordinator.planner.search import search
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


Planner = Callable[[Problem, Judge], Plan | None]
"""From layers, cluster and job size to a plan with its predicted round time; None if nothing fits."""

PLANNERS: Mapping[str, Planner] = {
    "asteroid": search,
    "asteroid-paper": paper,
    "on-device": on_device,
    "dp": data_parallel,
    "eddl": eddl,
    "gpipe": gpipe,
    "pipedream": pipedream,
    "dapple": dapple,
    "exhaustive": exhaustive,
}
"""By the name that ``plan.planner`` gives; all yield a plan that can be run."""


def round_time(plan: Plan, costs: Costs) -> float:
    """Seconds of a round, simulated."""
    return simulate(plan, costs, record=False).round_s


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
        raise InputError(f"There is no planner {planner}.", f"Planners: {', '.join(PLANNERS)}.")
    else:
        plan = PLANNERS[planner](problem, round_time)
    if plan is None:
        raise refusal(problem, planner)
    plan = plan.model_copy(update={"generation": generation})
    return Outcome(plan, costs_of(plan, problem), memory_of(plan, problem))
