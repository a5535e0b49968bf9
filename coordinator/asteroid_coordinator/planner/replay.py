"""Changes the last plan as little as a loss demands: new shares inside groups, or boundaries moved between stages.

Nothing is searched from scratch (Asteroid, section on pipeline replay): devices keep their place in the order of
stages, so that most of them keep most of their layers. Where that ends much slower than a new plan would be, planning
anew pays, but later, while training already goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from asteroid_coordinator.planner.costing import costs_of
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
from asteroid_core.plan import Plan

BUDGET = 4_000
"""Micro-batches of a device that are simulated: a light plan is there before the workers have noticed."""
WIDTH, NEIGHBOURS = 6, 120
NEAR = 1.03
"""Among plans up to so much slower than the fastest, the one that moves the least wins."""


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
    return _next(plan, old, judge(plan, costs_of(plan, problem)))


def replay(problem: Problem, old: Plan, judge: Judge) -> Plan | None:
    """Return a plan with moved boundaries (Asteroid, layer-wise lightweight re-planning); None if nothing fits.

    Stages that lost all devices are dissolved into their neighbours. Boundaries start from the least change and from
    where each stage's part of the work equals its part of the speed; from the better ones, single boundaries, samples
    and devices are moved as long as the simulator finds it faster.

    Args:
        problem: times and memory of the devices that are there.
        old: the plan in force.
        judge: the simulator.
    """
    pieces = _survivors(problem, old)
    if all(not piece.devices for piece in pieces):
        return None
    starts = [*_dissolved(pieces), _by_capacity(problem, pieces)]
    sizes = [old.micro_size, *(s for s in sorted(problem.wishes.micro_sizes, reverse=True) if s < old.micro_size)]
    for micro in sizes:
        plans = [plan for start in starts for plan in _drafts(problem, start, micro, old)]
        if plans:
            break
    else:
        return None
    jury = Jury(problem, judge, BUDGET)
    first = sorted({shape_of(plan): plan for plan in plans}.values(), key=jury.bound)[: 2 * WIDTH]
    first.sort(key=jury.seconds)
    found = [*first, *(improve(plan, jury, WIDTH, NEIGHBOURS, _small_changes) for plan in first[:2])]
    limit = NEAR * min(jury.seconds(plan) for plan in found)
    near = [plan for plan in found if jury.seconds(plan) <= limit]
    best = min(near, key=lambda plan: (moved(problem, old, plan), jury.seconds(plan)))
    return _next(best, old, jury.seconds(best))


def moved(problem: Problem, old: Plan, new: Plan) -> int:
    """Bytes of weights that have to travel: what a device trains now and neither trained nor kept a copy of before."""
    total = 0
    for stage in new.stages:
        for device in stage.devices:
            had = {
                layer
                for before in old.stages
                if device in before.devices or device in before.backups
                for layer in range(before.lo, before.hi)
            }
            missing = (layer for layer in range(stage.lo, stage.hi) if layer not in had)
            total += sum(problem.layers[layer].parameter_bytes for layer in missing)
    return total


def _next(plan: Plan, old: Plan, seconds: float) -> Plan:
    return plan.model_copy(update={"generation": old.generation + 1, "predicted_s": seconds})


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
