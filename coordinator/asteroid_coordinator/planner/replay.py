"""Changes the last plan as little as a loss demands: new shares inside groups, or boundaries moved between stages.

No full planning (Asteroid, section on pipeline replay): one order of devices, the old one, and few micro-batch sizes.
What wins is the plan with which the rounds that remain are done first, the transfer of what moves included. Where that
ends slower than a full plan would be, planning anew pays, but later, while training already goes on (``worth``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from asteroid_coordinator.planner.draft import Piece, draft, pieces_of, warm_ups
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import (
    Change,
    Judge,
    Jury,
    improve,
    moved_boundaries,
    moved_devices,
    moved_samples,
    shape_of,
)
from asteroid_coordinator.planner.search import along, one_stage
from asteroid_coordinator.planner.worth import pays, transfers
from asteroid_core.plan import Plan

NEAR = 1.01
"""Among plans whose rounds that remain take up to so much longer than the best, the one that moves the least wins."""
HORIZON = 1000
"""Rounds that a light plan is thought to live for, where nobody says."""
STRUCTURED = ("asteroid", "exhaustive")
"""Planners whose light plans may have another structure; plans by hand, and of others, keep theirs."""


@dataclass(frozen=True)
class LightEffort:
    """How hard to look, by the size of the problem; counts, not seconds, so that plans are reproducible.

    Attributes:
        edges: runs of layers begin at so many places in the dynamic program.
        sizes: micro-batch sizes it is run with, the old one and those next to it.
        orders: places in the old order where devices that do nothing yet are put.
        judged: plans that are simulated first.
        starts: of them are improved.
        budget: micro-batches of a device that are simulated in all.
        width: plans simulated in one step of the improvement.
        neighbours: changes looked at in one step.
    """

    edges: int
    sizes: int
    orders: int
    judged: int
    starts: int
    budget: int
    width: int
    neighbours: int

    @classmethod
    def of(cls, problem: Problem) -> LightEffort:
        """Choose by the number of devices."""
        devices = len(problem.sites)
        if devices <= 4:
            return cls(16, 1, 3, 8, 2, 2_000, 4, 120)
        if devices <= 10:
            return cls(32, 1, 1, 5, 1, 1_200, 3, 60)
        return cls(32, 1, 1, 3, 1, 3_000, 2, 40)


def lighter(
    problem: Problem, old: Plan, judge: Judge, rounds: int = HORIZON, again: int | None = None
) -> tuple[Plan | None, bool]:
    """Return the light plan after a loss, and whether it only regroups: no weights move, no round is lost.

    Regrouping is left for a plan that moves boundaries only where that pays back in the rounds that remain.

    Args:
        problem: times and memory of the devices that are there.
        old: the plan in force.
        judge: the simulator.
        rounds: that remain.
        again: rounds that are run again if boundaries move; None: nobody knows, so regroup wherever that does.
    """
    first = regroup(problem, old, judge)
    if first is not None and (again is None or old.planner not in STRUCTURED):
        return first, True
    other = replay(problem, old, judge, rounds)
    if first is None or other is None or again is None:
        return first or other, first is not None
    assert first.predicted_s is not None
    assert other.predicted_s is not None
    cost = transfers(problem, old, other)[1] + again * other.predicted_s
    better = pays(first.predicted_s, other.predicted_s, rounds, cost).pays
    return (other, False) if better else (first, True)


def regroup(problem: Problem, old: Plan, judge: Judge) -> Plan | None:
    """Return the old plan with new shares in the groups that lost a device; None if that does not do.

    It does not if a stage has nobody left, if memory does not suffice, or if a device has to take part that does not.

    Args:
        problem: times and memory of the devices that are there.
        old: the plan in force.
        judge: the simulator.
    """
    pieces = _survivors(problem, old)
    if any(not piece.devices for piece in pieces):
        return None
    made = draft(problem, pieces, old.micro_size, planner=old.planner, order=old.order)
    if made is None or len(made.devices) != sum(len(piece.devices) for piece in pieces):
        return None
    whole = [
        before.model_copy(update={"backups": ()}) if before.devices == piece.devices else after
        for before, after, piece in zip(old.stages, made.stages, pieces, strict=True)
    ]
    plan = made.model_copy(update={"stages": tuple(whole)})
    return _next(plan, old, Jury(problem, judge, 0))


def replay(problem: Problem, old: Plan, judge: Judge, rounds: int = HORIZON) -> Plan | None:
    """Return a plan with moved boundaries (Asteroid, layer-wise lightweight re-planning); None if nothing fits.

    It begins from several plans: stages that lost all devices dissolved into their neighbours, or taken over by devices
    that did nothing; boundaries where each stage's part of the work equals its part of the speed; what one dynamic
    program finds along the old order of devices; one stage. The best are improved as long as the simulator finds it
    faster.

    Args:
        problem: times and memory of the devices that are there.
        old: the plan in force.
        judge: the simulator.
        rounds: that remain.
    """
    if problem.wishes.order != old.order:
        problem = replace(problem, wishes=replace(problem.wishes, order=old.order))
    free = old.planner in STRUCTURED
    effort = LightEffort.of(problem)
    plans = list(_kept_structure(problem, old, free))
    if free:
        plans += [*_along_old_order(problem, old, effort), *one_stage(problem)]
        if not plans:  # where memory is tight another size of micro-batch may be the only one
            every = replace(effort, sizes=len(problem.wishes.micro_sizes))
            plans = list(_along_old_order(problem, old, every))
    if not plans:
        return None
    jury = Jury(problem, judge, effort.budget)
    first = sorted({shape_of(plan): plan for plan in plans}.values(), key=jury.bound)[: effort.judged]
    first.sort(key=jury.seconds)
    changes = None if free else _small_changes
    walked = [improve(plan, jury, effort.width, effort.neighbours, changes) for plan in first[: effort.starts]]
    return _next(_soonest(problem, old, [*first, *walked], jury, rounds), old, jury)


def _soonest(problem: Problem, old: Plan, plans: Sequence[Plan], jury: Jury, rounds: int) -> Plan:
    """The plan with which the rounds that remain are done first, what moves included; of near ones what moves least."""
    moving = {shape_of(plan): transfers(problem, old, plan) for plan in plans}

    def total(plan: Plan) -> float:
        return jury.seconds(plan) * max(rounds, 1) + moving[shape_of(plan)][1]

    limit = NEAR * min(total(plan) for plan in plans)
    near = [plan for plan in plans if total(plan) <= limit]
    return min(near, key=lambda plan: (sum(moving[shape_of(plan)][0].values()), jury.seconds(plan)))


def _kept_structure(problem: Problem, old: Plan, free: bool) -> Iterator[Plan]:
    """The old stages without the lost devices, with the largest micro-batches up to the old that fit."""
    pieces = _survivors(problem, old)
    starts = list(_filled(problem, old, pieces)) if free else []
    if any(piece.devices for piece in pieces):
        starts += [*_dissolved(pieces), _by_capacity(problem, pieces)]
    for micro in _falling(problem, old):
        plans = [plan for start in starts for plan in _drafts(problem, start, micro, old)]
        if plans:
            yield from plans
            return


def _falling(problem: Problem, old: Plan) -> list[int]:
    return [old.micro_size, *(s for s in sorted(problem.wishes.micro_sizes, reverse=True) if s < old.micro_size)]


def _idle(problem: Problem, old: Plan) -> list[str]:
    used = set(old.devices)
    return [site.name for site in problem.sites if site.name not in used]


def _filled(problem: Problem, old: Plan, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Put a device that did nothing, or all of them, in the place of those that were lost."""
    idle = _idle(problem, old)
    groups = [(name,) for name in idle] + ([tuple(idle)] if len(idle) > 1 else [])
    for number, (before, piece) in enumerate(zip(old.stages, pieces, strict=True)):
        if len(piece.devices) < len(before.devices):
            for group in groups:
                filled = [*pieces]
                filled[number] = replace(piece, devices=(*piece.devices, *group))
                if all(one.devices for one in filled):
                    yield filled
                    continue
                yield from _dissolved(filled)


def _along_old_order(problem: Problem, old: Plan, effort: LightEffort) -> Iterator[Plan]:
    """What the dynamic program makes of the survivors in their old order, others where one was lost or at an end."""
    number = {site.name: n for n, site in enumerate(problem.sites)}
    idle = [number[name] for name in _idle(problem, old)]
    kept = [number[name] for name in old.devices if name in number]
    gap = next((n for n, name in enumerate(old.devices) if name not in number), len(kept))
    orders = dict.fromkeys((*kept[:at], *idle, *kept[at:]) for at in (gap, len(kept), 0))
    sizes = sorted(problem.wishes.micro_sizes, key=lambda size: (abs(size - old.micro_size), -size))[: effort.sizes]
    most = len(old.stages) + 1
    for order in itertools.islice(orders, effort.orders):
        for micro in sizes:
            yield from along(problem, order, micro, most_edges=effort.edges, most_stages=most)


def moved(problem: Problem, old: Plan, new: Plan) -> int:
    """Bytes of state that have to travel: of what a device trains now and neither trained nor kept a copy of before."""
    return sum(transfers(problem, old, new)[0].values())


def _next(plan: Plan, old: Plan, jury: Jury) -> Plan:
    changed = {"generation": old.generation + 1, "predicted_s": jury.seconds(plan), "planner": old.planner}
    return plan.model_copy(update=changed)


def _survivors(problem: Problem, old: Plan) -> list[Piece]:
    """The stages with the devices that are left, perhaps none."""
    return [
        replace(piece, devices=tuple(name for name in piece.devices if name in problem.site))
        for piece in pieces_of(old)
    ]


def _dissolved(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Give the layers of stages without devices to the nearest ones that have some: every cut between the two."""
    alive = [piece for piece in pieces if piece.devices]
    between = [list(range(left.hi, right.lo + 1)) for left, right in itertools.pairwise(alive)]
    # With several empty stages at once the cuts multiply: then only the ends and the middle of each gap.
    if len([cuts for cuts in between if len(cuts) > 1]) > 1:
        between = [sorted({cuts[0], cuts[len(cuts) // 2], cuts[-1]}) for cuts in between]
    for cuts in itertools.product(*between):
        bounds = [pieces[0].lo, *cuts, pieces[-1].hi]
        yield [replace(piece, lo=bounds[n], hi=bounds[n + 1]) for n, piece in enumerate(alive)]


def _by_capacity(problem: Problem, pieces: Sequence[Piece]) -> list[Piece]:
    """Cut so that each stage's part of the work equals its part of the speed, at least a layer for each."""
    alive = [piece for piece in pieces if piece.devices]
    count, micro = problem.sums.count, max(problem.wishes.micro_sizes)
    names = [name for piece in alive for name in piece.devices]
    work = [0.0] * count
    speed: dict[str, float] = {}
    for name in names:
        forward, backward = problem.times(problem.site[name], micro)
        whole = max(forward[-1] + backward[-1], 1e-12)
        speed[name] = 1.0 / whole
        for layer in range(count):
            work[layer] += (forward[layer + 1] - forward[layer] + backward[layer + 1] - backward[layer]) / whole
    prefix = list(itertools.accumulate(work, initial=0.0))
    strength = list(itertools.accumulate((sum(speed[n] for n in piece.devices) for piece in alive), initial=0.0))
    cuts = [0]
    for number in range(1, len(alive)):
        aim = prefix[-1] * strength[number] / strength[-1]
        room = range(cuts[-1] + 1, count - (len(alive) - number) + 1)
        cuts.append(min(room, key=lambda at: (abs(prefix[at] - aim), at)))
    cuts.append(count)
    return [replace(piece, lo=cuts[n], hi=cuts[n + 1]) for n, piece in enumerate(alive)]


def _drafts(problem: Problem, pieces: Sequence[Piece], micro: int, old: Plan) -> Iterator[Plan]:
    """The structure with the larger and with the smaller K, as far as memory suffices."""
    plain = [(piece.lo, piece.hi, piece.devices) for piece in pieces]
    for wide in (True, False):
        made = draft(problem, warm_ups(plain, wide), micro, planner=old.planner, order=old.order)
        if made is not None:
            yield made


def _small_changes(plan: Plan, problem: Problem) -> Iterator[Change]:
    return itertools.chain(moved_boundaries(plan, problem), moved_samples(plan, problem), moved_devices(plan, problem))
