"""Says why nothing fits, and what would."""

from __future__ import annotations

from asteroid_coordinator.planner.problem import Problem
from asteroid_core.errors import PlanError


def refusal(problem: Problem) -> PlanError:
    """Return the error of a model that fits nowhere: the closest device, what it lacks, what helps."""
    micro = min(problem.wishes.micro_sizes)
    lent = {site.name: site.budget_mb for site in problem.sites}
    smallest = max(
        (
            min(problem.memory(site, layer, layer + 1, 1, 1, 1).total / 1e6 - site.budget_mb for site in problem.sites),
            layer,
        )
        for layer in range(problem.sums.count)
    )
    lacks, layer = smallest
    if lacks > 0:
        name = problem.layers[layer].name
        what = f"Layer {layer} ({name}) alone needs {lacks:.0f} MB more than any device lends."
        return PlanError(what, f"Lend more memory on one device ({_list(lent)}), or use a smaller model.")
    whole = min(problem.memory(site, 0, problem.sums.count, micro, 1, 1).total / 1e6 for site in problem.sites)
    total = sum(lent.values())
    what = (
        f"The model fits nowhere: with micro-batches of {micro} it needs about {whole:.0f} MB on one device, "
        f"and the devices lend {_list(lent)}."
    )
    wishes = problem.wishes
    if wishes.stages is not None or wishes.all_devices:
        return PlanError(what, "Drop plan.stages or plan.all_devices, use a smaller train.micro_batch, or lend more.")
    if total < whole:
        return PlanError(
            what, f"Add a device, or lend {whole - total:.0f} MB more; a smaller train.micro_batch helps too."
        )
    return PlanError(what, "Use a smaller train.micro_batch, lend more memory, or sgd without momentum.")


def _list(lent: dict[str, float]) -> str:
    return ", ".join(f"{name} {budget:.0f} MB" for name, budget in sorted(lent.items()))
