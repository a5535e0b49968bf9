"""The planner ``asteroid``: Algorithm 2 over several device orders and micro-batch sizes, improved under the simulator.

1. For each micro-batch size and device order the dynamic program gives the best structures by the closed formula.
2. The simulator judges the most hopeful of them.
3. From the best few, small changes are made as long as the simulator finds them faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asteroid_coordinator.planner.draft import Piece, draft
from asteroid_coordinator.planner.pipeline import Found, Rules, solve
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.planner.refine import Judge, Jury, improve
from asteroid_coordinator.planner.tables import Tables
from asteroid_core.plan import Plan

MANY_K = 6
"""Up to so many devices both values of K are planned; beyond, the smaller one only where the larger fits nowhere."""
MOST_STAGES = 32
"""Longer pipelines are not looked for unless the job asks for one."""


@dataclass(frozen=True)
class Effort:
    """How hard to search, by the size of the problem; counts, not seconds, so that plans are reproducible.

    Attributes:
        edges: runs of layers begin at so many places while orders and sizes are compared.
        fine: at so many in the dynamic program of the best ones.
        refined: orders and sizes that are planned finely.
        orders: device orders tried.
        sizes: micro-batch sizes tried with the first order.
        kept: (micro-batch size, K) tried with the other orders.
        judged: structures that are simulated.
        starts: plans that are improved.
        budget: micro-batches of a device that are simulated in all.
        width: plans simulated in one step of the improvement.
        neighbours: changes looked at in one step.
    """

    edges: int
    fine: int
    refined: int
    orders: int
    sizes: int
    kept: int
    judged: int
    starts: int
    budget: int
    width: int
    neighbours: int

    @classmethod
    def of(cls, problem: Problem) -> Effort:
        """Choose by the number of devices and of layers."""
        devices, layers = len(problem.sites), problem.sums.count
        if devices <= 4:
            return cls(min(layers, 24), 64, 4, 24, 64, 64, 24, 4, 20_000, 12, 1000)
        if devices <= 6:
            return cls(min(layers, 24), 64, 2, 12, 8, 3, 16, 4, 30_000, 10, 300)
        if devices <= 10:
            return cls(min(layers, 20), 64, 1, 4, 6, 1, 10, 2, 6_000, 8, 150)
        if devices <= 40:
            return cls(min(layers, 20), 48, 1, 3, 4, 1, 6, 2, 40_000, 6, 120)
        return cls(min(layers, 24), 40, 1, 2, 3, 1, 3, 1, 100_000, 4, 60)


def search(problem: Problem, judge: Judge, effort: Effort | None = None) -> Plan | None:
    """Return the best plan found, with its predicted round time, or None if nothing fits.

    Args:
        problem: what to plan.
        judge: the simulator.
        effort: how hard to search; default: by the size of the problem.
    """
    effort = effort or Effort.of(problem)
    jury = Jury(problem, judge, effort.budget)
    plans = [*_plans(problem, _structures(problem, effort), effort.judged * 4), *one_stage(problem)]
    if not plans:
        return None
    hopeful = _different(sorted(plans, key=jury.bound))[: effort.judged]
    hopeful.sort(key=jury.seconds)
    starts = _different(hopeful)[: effort.starts]
    best = min((improve(plan, jury, effort.width, effort.neighbours) for plan in starts), key=jury.seconds)
    return best.model_copy(update={"predicted_s": jury.seconds(best)})


def one_stage(problem: Problem) -> Iterator[Plan]:
    """One stage, on one device or on all: where links are slow little else is worth a thought."""
    wishes, last = problem.wishes, problem.sums.count
    if wishes.stages not in (None, 1):
        return
    everybody = tuple(site.name for site in problem.sites)
    for micro in wishes.micro_sizes:
        groups = [(site.name,) for site in problem.sites]
        for group in [*groups, everybody] if len(everybody) <= micro else groups:
            plan = draft(problem, [Piece(0, last, group, 1)], micro)
            if plan is not None:
                yield plan


def _different(plans: Sequence[Plan]) -> list[Plan]:
    """The best of each number of stages first: from there small changes lead to different places."""
    firsts: dict[int, Plan] = {}
    for plan in plans:
        firsts.setdefault(len(plan.stages), plan)
    first = list(firsts.values())
    return [*first, *(plan for plan in plans if plan not in first)]


def along(problem: Problem, order: tuple[int, ...], micro: int, *, most_edges: int, most_stages: int) -> Iterator[Plan]:
    """Plans of the best structures for one order of devices and one micro-batch size: what a light plan can afford.

    Args:
        problem: what to plan.
        order: indices of its sites; a stage is a contiguous part of it.
        micro: samples of a micro-batch.
        most_edges: runs of layers begin at so many places.
        most_stages: longest pipeline.
    """
    tables = Tables(problem, edges(problem, most_edges))
    found = list(_solve(problem, tables, order, micro, True, most_stages))
    if not found:
        found = list(_solve(problem, tables, order, micro, False, most_stages))
    yield from _plans(problem, ((micro, one) for one in found), len(found))


def feasible(problem: Problem) -> bool:
    """Whether anything fits, with the smallest K."""
    tables = Tables(problem, edges(problem, Effort.of(problem).edges))
    return any(
        draft(problem, pieces_of_found(problem, found), micro) is not None
        for order in itertools.islice(_orders(problem), Effort.of(problem).orders)
        for micro in problem.wishes.micro_sizes
        for found in _solve(problem, tables, order, micro, False)
    )


def pieces_of_found(problem: Problem, found: Found) -> list[Piece]:
    """The structure with the names of its devices."""
    return [Piece(cut.lo, cut.hi, tuple(problem.sites[m].name for m in cut.members), cut.warm_up) for cut in found.cuts]


def edges(problem: Problem, most: int) -> list[int]:
    """Layers at which a stage may begin: all, or the ones that divide the work evenly where little crosses."""
    count = problem.sums.count
    if count <= most:
        return list(range(count + 1))
    work = [0.0] * count
    for site in problem.sites[:: max(len(problem.sites) // 8, 1)]:
        forward, backward = problem.times(site, max(problem.wishes.micro_sizes))
        whole = (forward[-1] + backward[-1]) or 1.0
        for layer in range(count):
            work[layer] += (forward[layer + 1] - forward[layer] + backward[layer + 1] - backward[layer]) / whole
    weights = problem.sums.trainable(0, count) or 1
    dearest = max(sum(problem.sums.boundary(at)) for at in range(1, count)) or 1
    load = [w / sum(work) + 0.5 * problem.sums.trainable(n, n + 1) / weights for n, w in enumerate(work)]
    out, reached, total = [0], 0.0, sum(load)
    at = 1
    for piece in range(1, most):
        # Among the cuts of this piece's share of the work, the one that the fewest bytes cross.
        aim = total * piece / most
        window: list[int] = []
        while at < count and (reached + load[at - 1] <= aim or not window):
            reached += load[at - 1]
            window.append(at)
            at += 1
        if window:
            out.append(min(window, key=lambda cut: (sum(problem.sums.boundary(cut)) / dearest, -cut)))
    return [*out, count]


def _structures(problem: Problem, effort: Effort) -> Iterator[tuple[int, Found]]:
    """(micro-batch size, structure) of every order; sizes that do badly with the first order are not tried again.

    All that is tried with coarse layers; the best order and size then with fine ones.
    """
    orders = list(itertools.islice(_orders(problem), effort.orders))
    wishes = problem.wishes
    tables = Tables(problem, edges(problem, effort.edges))
    best: dict[tuple[int, bool, tuple[int, ...]], float] = {}

    def solved(tables: Tables, micro: int, wide: bool, order: tuple[int, ...]) -> list[tuple[int, Found]]:
        found = list(_solve(problem, tables, order, micro, wide))
        best[micro, wide, order] = min((one.seconds for one in found), default=float("inf"))
        return [(micro, one) for one in found]

    for micro in _spread_sizes(wishes.micro_sizes, effort.sizes):
        tables.tight = False
        wide = solved(tables, micro, True, orders[0])
        yield from wide
        if wishes.order == "1f1b" and tables.tight and (len(problem.sites) <= MANY_K or not wide):
            yield from solved(tables, micro, False, orders[0])
    kept = sorted(best, key=lambda key: (best[key], key))[: effort.kept]
    for order in orders[1:]:
        for micro, k, _ in kept:
            yield from solved(tables, micro, k, order)
    if tables.count < min(problem.sums.count, effort.fine):
        fine = Tables(problem, edges(problem, effort.fine))
        for micro, k, order in sorted(best, key=lambda key: (best[key], key))[: effort.refined]:
            yield from solved(fine, micro, k, order)


def _spread_sizes(sizes: Sequence[int], most: int) -> list[int]:
    """At most so many micro-batch sizes, evenly from small to large."""
    rising = sorted(sizes)
    if len(rising) <= most:
        return rising
    return sorted({rising[round(i * (len(rising) - 1) / (most - 1))] for i in range(most)})


def _solve(
    problem: Problem, tables: Tables, order: tuple[int, ...], micro: int, wide: bool, most: int = MOST_STAGES
) -> Iterator[Found]:
    wishes = problem.wishes
    rules = Rules(
        micro=micro,
        micros=wishes.batch // micro,
        wide=wide,
        gpipe=wishes.order == "gpipe",
        stages=wishes.stages or most,
        skip=not wishes.all_devices,
    )
    for found in solve(tables, order, rules):
        if wishes.stages is None or len(found.cuts) == wishes.stages:
            yield found


def _plans(problem: Problem, structures: Iterator[tuple[int, Found]], most: int) -> Iterator[Plan]:
    """The plans of the best structures by the formula."""
    seen = set()
    drafted = 0
    for micro, found in sorted(structures, key=lambda entry: (entry[1].seconds, -entry[0])):
        pieces = pieces_of_found(problem, found)
        key = (micro, tuple(pieces))
        if key in seen:
            continue
        seen.add(key)
        plan = draft(problem, pieces, micro)
        if plan is not None:
            drafted += 1
            yield plan
        if drafted >= most:
            return


def _orders(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Device orders: all of a few devices; else by memory, speed and link, both ways, and then alternating ones."""
    top = max(problem.wishes.micro_sizes)
    count = len(problem.sites)

    def seconds(site: Site) -> float:
        forward, backward = problem.times(site, top)
        return forward[-1] + backward[-1]

    facts = [(s.budget_mb, seconds(s), s.profile.bytes_per_s, s.profile.message_s, s.name) for s in problem.sites]
    by_memory = sorted(range(count), key=lambda i: (-facts[i][0], *facts[i][1:]))
    by_speed = sorted(range(count), key=lambda i: facts[i][1:])
    by_link = sorted(range(count), key=lambda i: (-facts[i][2], facts[i][1], *facts[i]))
    seen = set()

    def new(order: list[int]) -> Iterator[tuple[int, ...]]:
        kinds = tuple(facts[i][:4] for i in order)
        if kinds not in seen:
            seen.add(kinds)
            yield tuple(order)

    for order in (by_memory, by_speed[::-1], by_speed, by_memory[::-1], by_link, by_link[::-1]):
        yield from new(order)
    if count <= 6:
        for permutation in itertools.permutations(by_memory):
            yield from new(list(permutation))
    else:
        half = (count + 1) // 2
        for base in (by_speed, by_memory):
            mixed = [i for pair in itertools.zip_longest(base[:half], base[half:][::-1]) for i in pair if i is not None]
            yield from new(mixed)
            yield from new(mixed[::-1])
