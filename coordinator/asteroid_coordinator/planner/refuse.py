"""Says why nothing fits, which device lacks how much, and the smallest changes that would make it fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.planner.search import feasible
from asteroid_core.errors import PlanError
from asteroid_core.spec import OptimizerSpec

MOST_MB = 1 << 20
"""More memory than that is nothing that anybody would add."""
LOOKED_AT = 8
"""Devices for which the missing memory is worked out: those that lend most."""
WHOLE_MODEL = ("on-device", "dp", "eddl")
"""Planners that put the whole model on each device they use."""


def refusal(problem: Problem, planner: str = "asteroid") -> PlanError:
    """Return the error of a job that fits nowhere.

    Args:
        problem: for which no plan was found.
        planner: that looked for it.
    """
    if planner != "asteroid" and feasible(problem):
        return PlanError(
            f"The planner {planner} finds no plan that fits: {_limit(problem, planner)}.",
            "The planner asteroid finds one: leave out --planner and plan.planner.",
        )
    what = _lacking(problem)
    ways = [way for way in (_micro(problem), _optimizer(problem), _lend(problem), _another(problem)) if way]
    if problem.wishes.stages is not None or problem.wishes.all_devices:
        free = replace(problem, wishes=replace(problem.wishes, stages=None, all_devices=False))
        if feasible(free):
            ways.insert(0, "drop plan.stages and plan.all_devices")
    if not ways:
        return PlanError(what, "Use a smaller model, or several more devices.")
    return PlanError(what, f"One of these makes it fit: {'; '.join(ways)}.")


def _limit(problem: Problem, planner: str) -> str:
    """What stops a planner that sees less than ours."""
    if planner not in WHOLE_MODEL:
        return "the stages that it chooses need more memory than their devices lend"
    count = problem.sums.count
    needs = [
        (problem.memory(s, 0, count, 1, 1, len(problem.sites)).total / 1e6 - s.budget_mb, s) for s in problem.sites
    ]
    lacks, site = (min if planner == "on-device" else max)(needs, key=lambda need: (need[0], need[1].name))
    if lacks <= 0:
        return "with the smallest micro-batches that it may use the shares do not fit"
    return f"the whole model needs {lacks:.0f} MB more than the {site.budget_mb:.0f} MB that {site.name} lends"


def _lacking(problem: Problem) -> str:
    """Which device lacks how much: of one layer alone, or of the nearest arrangement."""
    lent = ", ".join(f"{site.name} {site.budget_mb:.0f} MB" for site in _largest(problem))
    worst, layer = max(
        (
            min(problem.memory(site, at, at + 1, 1, 1, 1).total / 1e6 - site.budget_mb for site in problem.sites),
            at,
        )
        for at in range(problem.sums.count)
    )
    if worst > 0:
        name = problem.layers[layer].name
        return f"Layer {layer} ({name}) alone needs {worst:.0f} MB more than any device lends ({lent})."
    micro = min(problem.wishes.micro_sizes)
    nearest = _nearest(problem)
    if nearest is not None:
        site, more = nearest
        return (
            f"The model fits nowhere: with micro-batches of {micro}, {site.name} lacks {more} MB to hold its part "
            f"beside what the others hold ({lent})."
        )
    whole = min(problem.memory(site, 0, problem.sums.count, micro, 1, 1).total / 1e6 for site in problem.sites)
    return f"The model fits nowhere: it needs about {whole:.0f} MB with micro-batches of {micro}; lent are {lent}."


def _micro(problem: Problem) -> str:
    """A smaller micro-batch."""
    smallest, batch = min(problem.wishes.micro_sizes), problem.wishes.batch
    for size in range(smallest - 1, 0, -1):
        if batch % size == 0 and feasible(replace(problem, wishes=replace(problem.wishes, micro_sizes=(size,)))):
            return f"train.micro_batch = {size}"
    return ""


def _optimizer(problem: Problem) -> str:
    """An optimizer that keeps less."""
    for name, other in (
        ('optimizer.kind = "sgd"', OptimizerSpec(kind="sgd")),
        ('optimizer.kind = "sgd" with momentum = 0', OptimizerSpec(kind="sgd", momentum=0.0)),
    ):
        if other.kind == problem.optimizer.kind and other.momentum >= problem.optimizer.momentum:
            continue
        if feasible(replace(problem, optimizer=other)):
            return name
    return ""


def _lend(problem: Problem) -> str:
    nearest = _nearest(problem)
    return "" if nearest is None else f"lend {nearest[1]} MB more on {nearest[0].name}"


def _nearest(problem: Problem) -> tuple[Site, int] | None:
    """The device that would have to lend the least more, and how many megabytes."""
    best: tuple[int, str, Site] | None = None
    for site in _largest(problem):

        def lends(more: int, site: Site = site) -> bool:
            richer = replace(site, budget_mb=site.budget_mb + more)
            return feasible(replace(problem, sites=tuple(richer if s is site else s for s in problem.sites)))

        ceiling = MOST_MB if best is None else best[0]
        more = _least(lends, ceiling)
        if more is not None and (best is None or more < best[0]):
            best = (more, site.name, site)
    return None if best is None else (best[2], best[0])


def _another(problem: Problem) -> str:
    """One more device like the one that lends most."""
    like = _largest(problem)[0]

    def joins(lent: int) -> bool:
        new = replace(like, name="\x7f", budget_mb=float(lent))
        return feasible(replace(problem, sites=(*problem.sites, new)))

    lent = _least(joins, MOST_MB)
    return "" if lent is None else f"one more device that lends {_size(lent)}"


def _least(enough: Callable[[int], bool], most: int) -> int | None:
    """Smallest whole number (to 1 %) that is enough; None if not even ``most`` is."""
    if not enough(most):
        return None
    low, high = 0, most
    while high - low > max(high // 100, 1):
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _size(mb: int) -> str:
    return f"{mb} MB" if mb < 1000 else f"{-(-mb // 100) / 10:.1f} GB"


def _largest(problem: Problem) -> list[Site]:
    return sorted(problem.sites, key=lambda site: (-site.budget_mb, site.name))[:LOOKED_AT]
