"""Improves a plan step by step, with the simulator as the judge: what the closed formula does not see is found here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from asteroid_coordinator.planner.costing import costs_of, fits
from asteroid_coordinator.planner.draft import Piece, assemble, draft, pieces_of, warm_ups
from asteroid_coordinator.planner.formula import lower_bound
from asteroid_coordinator.planner.problem import Problem
from asteroid_core.costs import Costs
from asteroid_core.plan import Plan, Share, Stage

Judge = Callable[[Plan, Costs], float]
"""Round time of a plan under its costs, in seconds (the simulator)."""

Change = Callable[[], "Plan | None"]
"""A plan that differs in one small thing; None if it does not fit."""

Changes = Callable[[Plan, Problem], Iterator[Change]]
"""Small changes of a plan, each made when asked for."""

GAIN = 1e-3
"""Part of the round time that an improvement has to save, so that noise of rounding does not walk for ever."""


@dataclass
class Jury:
    """Judges plans, remembers the verdicts, and knows when it has judged enough.

    Attributes:
        problem: what is planned.
        judge: the simulator.
        budget: micro-batches of a device that may still be simulated (what a simulation costs).
    """

    problem: Problem
    judge: Judge
    budget: int
    _known: dict[object, float] = field(default_factory=dict)
    _bounds: dict[object, tuple[float, Costs]] = field(default_factory=dict)

    def bound(self, plan: Plan) -> float:
        """A round time that the plan cannot beat."""
        key = shape_of(plan)
        if key not in self._bounds:
            costs = costs_of(plan, self.problem)
            self._bounds[key] = (lower_bound(plan, costs), costs)
        return self._bounds[key][0]

    def seconds(self, plan: Plan) -> float:
        """Simulated round time."""
        key = shape_of(plan)
        if key not in self._known:
            self.bound(plan)
            self.budget -= len(plan.devices) * plan.micro_count
            self._known[key] = self.judge(plan, self._bounds[key][1])
        return self._known[key]


def shape_of(plan: Plan) -> object:
    """What the time of a plan depends on."""
    return (
        plan.micro_size,
        plan.order,
        tuple((s.lo, s.hi, s.warm_up, tuple((h.device, h.samples) for h in s.shares)) for s in plan.stages),
    )


def improve(plan: Plan, jury: Jury, width: int, neighbours: int, changes: Changes | None = None) -> Plan:
    """Walk to a plan that no small change makes faster.

    Args:
        plan: where to begin.
        jury: judges.
        width: plans simulated in one step before the best of them is taken.
        neighbours: changes looked at in one step.
        changes: that may be made; default: every one.
    """
    changes = changes or every_change
    best, seconds = plan, jury.seconds(plan)
    while jury.budget > 0:
        hopeful = []
        for number, change in enumerate(_spread(list(changes(best, jury.problem)), neighbours)):
            other = change()
            if other is None:
                continue
            bound = jury.bound(other)
            if bound < seconds * (1 - GAIN):
                hopeful.append((bound, number, other))
        hopeful.sort(key=lambda entry: entry[:2])
        found, at = None, seconds * (1 - GAIN)
        for tried, (bound, _, other) in enumerate(hopeful):
            if jury.budget <= 0 or bound >= at or (tried >= width and found is not None):
                break
            if (value := jury.seconds(other)) < at:
                found, at = other, value
        if found is None:
            return best
        best, seconds = found, at
    return best


def _spread(every: list[Change], most: int) -> Sequence[Change]:
    """At most so many, evenly from the whole list."""
    if len(every) <= most:
        return every
    return [every[i * len(every) // most] for i in range(most)]


def every_change(plan: Plan, problem: Problem) -> Iterator[Change]:
    """Every plan that differs from this one in one small thing, made when asked for."""
    pieces = pieces_of(plan)
    count, micro = len(pieces), plan.micro_size
    for structure in itertools.chain(_cuts(pieces), _places(pieces, problem)):
        yield partial(_drafted, problem, structure, micro)
    if problem.wishes.stages is None:
        for structure in itertools.chain(_merges(pieces), _splits(pieces, problem)):
            yield partial(_drafted, problem, structure, micro)
    yield from moved_samples(plan, problem)
    sizes = sorted(problem.wishes.micro_sizes)
    at = sizes.index(micro)
    for near in (at - 1, at + 1):
        if 0 <= near < len(sizes) and all(len(piece.devices) <= sizes[near] for piece in pieces):
            yield partial(_drafted, problem, pieces, sizes[near])
    for wide in (True, False):
        other = warm_ups([(p.lo, p.hi, p.devices) for p in pieces], wide)
        if other != pieces:
            yield partial(draft, problem, other, micro)
    for number in range(count - 1):  # one stage alone, where its memory has room or not
        for keep in (count - number, 2 * (count - number) - 1):
            above = pieces[number - 1].warm_up if number else keep
            if keep != pieces[number].warm_up and above >= keep >= pieces[number + 1].warm_up:
                changed = [*pieces[:number], replace(pieces[number], warm_up=keep), *pieces[number + 1 :]]
                yield partial(draft, problem, changed, micro)


def moved_boundaries(plan: Plan, problem: Problem) -> Iterator[Change]:
    """Move one boundary between stages."""
    for structure in _cuts(pieces_of(plan)):
        yield partial(_drafted, problem, structure, plan.micro_size)


def moved_devices(plan: Plan, problem: Problem) -> Iterator[Change]:
    """Take a device in or out, move it to another stage, or let two change places."""
    for structure in _places(pieces_of(plan), problem):
        yield partial(_drafted, problem, structure, plan.micro_size)


def _drafted(problem: Problem, pieces: Sequence[Piece], micro: int) -> Plan | None:
    """The plan with the K that it has; if it does not fit, with the smaller one."""
    made = draft(problem, pieces, micro)
    if made is None:
        made = draft(problem, warm_ups([(p.lo, p.hi, p.devices) for p in pieces], False), micro)
    return made


def _cuts(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Move one boundary."""
    for number in range(len(pieces) - 1):
        left, right = pieces[number], pieces[number + 1]
        for step in (1, -1, 2, -2, 4, -4):
            at = left.hi + step
            if left.lo < at < right.hi:
                yield [
                    *pieces[:number],
                    replace(left, hi=at),
                    replace(right, lo=at),
                    *pieces[number + 2 :],
                ]


def _places(pieces: Sequence[Piece], problem: Problem) -> Iterator[list[Piece]]:
    """Take a device in or out, move it to another stage, or let two change places."""
    used = {name for piece in pieces for name in piece.devices}
    free = [site.name for site in problem.sites if site.name not in used]

    def with_devices(changed: dict[int, tuple[str, ...]]) -> list[Piece]:
        return [replace(p, devices=changed[n]) if n in changed else p for n, p in enumerate(pieces)]

    for number, piece in enumerate(pieces):
        for name in free:
            yield with_devices({number: (*piece.devices, name)})
            for other in piece.devices:
                if not problem.wishes.must(other):
                    yield with_devices({number: tuple(name if d == other else d for d in piece.devices)})
        if len(piece.devices) > 1:
            for name in piece.devices:
                rest = tuple(d for d in piece.devices if d != name)
                if not problem.wishes.must(name):
                    yield with_devices({number: rest})
                for target in range(len(pieces)):
                    if target != number:
                        yield with_devices({number: rest, target: (*pieces[target].devices, name)})
    for a, b in itertools.combinations(range(len(pieces)), 2):
        for one in pieces[a].devices:
            for two in pieces[b].devices:
                yield with_devices(
                    {
                        a: tuple(two if d == one else d for d in pieces[a].devices),
                        b: tuple(one if d == two else d for d in pieces[b].devices),
                    }
                )


def _again(pieces: Sequence[Piece], stages: Sequence[tuple[int, int, tuple[str, ...]]]) -> list[Piece]:
    """Another number of stages: K by the rule that the old ones followed."""
    count = len(pieces)
    wide = all(piece.warm_up >= 2 * (count - n) - 1 for n, piece in enumerate(pieces))
    return warm_ups(stages, wide)


def _merges(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Make one stage of two neighbours, with the devices of both or of one."""
    plain = [(p.lo, p.hi, p.devices) for p in pieces]
    for n in range(len(pieces) - 1):
        left, right = pieces[n], pieces[n + 1]
        for devices in ((*left.devices, *right.devices), left.devices, right.devices):
            yield _again(pieces, [*plain[:n], (left.lo, right.hi, devices), *plain[n + 2 :]])


def _splits(pieces: Sequence[Piece], problem: Problem) -> Iterator[list[Piece]]:
    """Make two stages of one with several devices, or put a device that does nothing beside it."""
    used = {name for piece in pieces for name in piece.devices}
    free = [site.name for site in problem.sites if site.name not in used]
    plain = [(p.lo, p.hi, p.devices) for p in pieces]
    for n, piece in enumerate(pieces):
        length = piece.hi - piece.lo
        if length < 2:
            continue
        cuts = sorted({piece.lo + max(1, length * part // 4) for part in (1, 2, 3)})
        pairs = [(piece.devices[:k], piece.devices[k:]) for k in range(1, len(piece.devices))] + [
            (piece.devices[k:], piece.devices[:k]) for k in range(1, len(piece.devices))
        ]
        for name in free:
            pairs += [(piece.devices, (name,)), ((name,), piece.devices)]
        for cut in cuts:
            for left, right in pairs:
                two = [(piece.lo, cut, left), (cut, piece.hi, right)]
                yield _again(pieces, [*plain[:n], *two, *plain[n + 1 :]])


def moved_samples(plan: Plan, problem: Problem) -> Iterator[Change]:
    """Move samples between two devices of a group."""
    for number, stage in enumerate(plan.stages):
        for a, b in itertools.permutations(range(len(stage.shares)), 2):
            for step in (1, 2):
                if stage.shares[a].samples > step:
                    yield partial(_moved, plan, problem, number, a, b, step)


def _moved(plan: Plan, problem: Problem, number: int, a: int, b: int, step: int) -> Plan | None:
    shares = list(plan.stages[number].shares)
    shares[a] = Share(device=shares[a].device, samples=shares[a].samples - step)
    shares[b] = Share(device=shares[b].device, samples=shares[b].samples + step)
    changed: list[Stage] = list(plan.stages)
    changed[number] = changed[number].model_copy(update={"shares": tuple(shares)})
    made = assemble(problem, changed, plan.micro_size, plan.planner, plan.order)
    return made if fits(made, problem) else None
