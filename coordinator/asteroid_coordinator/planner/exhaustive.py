"""The truth for small problems: every plan, except those that provably cannot beat the best one known.

The space: every micro-batch size of the job; every sequence of disjoint device groups; every cut of the layers; every
division of a micro-batch in which each device has a sample; K of each stage P - p or 2 (P - p) - 1. Stages are added in
front, as in the dynamic program; a beginning whose lower bound is no better than the best plan is not gone on with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from asteroid_coordinator.planner.costing import costs_of, fits
from asteroid_coordinator.planner.draft import assemble
from asteroid_coordinator.planner.formula import lower_bound
from asteroid_coordinator.planner.problem import Problem
from asteroid_coordinator.planner.refine import Judge
from asteroid_coordinator.planner.search import search
from asteroid_core.errors import InputError
from asteroid_core.plan import Plan, Share, Stage

MOST_DEVICES = 5
MOST_LAYERS = 12


@dataclass(frozen=True)
class _Option:
    """One group on one run of layers with one division of the micro-batch.

    Attributes:
        seconds: M (E_f + E_b) of its slowest device.
        through: shortest forward and backward of a micro-batch in it.
        most: the largest share of each device, to check its memory.
        shares: samples of each device.
    """

    seconds: float
    through: float
    shares: tuple[int, ...]


@dataclass
class _Search:
    problem: Problem
    judge: Judge
    best: Plan | None
    seconds: float
    options: dict[tuple[tuple[str, ...], int, int, int], list[_Option]] = field(default_factory=dict)

    def run(self) -> None:
        wishes = self.problem.wishes
        for micro in wishes.micro_sizes:
            names = tuple(site.name for site in self.problem.sites)
            self._stage(micro, self.problem.sums.count, names, (), 0.0)

    def _stage(
        self,
        micro: int,
        hi: int,
        left: tuple[str, ...],
        tail: tuple[tuple[int, int, tuple[str, ...], tuple[int, ...]], ...],
        bound: float,
    ) -> None:
        """Try every stage that ends before ``tail``."""
        wishes, number = self.problem.wishes, len(tail) + 1
        if wishes.stages is not None and number > wishes.stages:
            return
        micros = wishes.batch // micro
        fewest = micros if wishes.order == "gpipe" else min(number, micros)
        for size in range(1, min(len(left), micro) + 1):
            for group in itertools.combinations(left, size):
                rest = tuple(name for name in left if name not in group)
                for lo in range(hi - 1, -1, -1):
                    if lo == 0 and any(wishes.must(name) for name in rest):
                        continue
                    if lo == 0 and wishes.stages not in (None, number):
                        continue
                    if not rest and lo > 0:
                        continue
                    for option in self._options(group, lo, hi, micro):
                        if option.seconds >= self.seconds:
                            break
                        ahead = max(option.seconds, option.through + bound)
                        if ahead >= self.seconds or not self._fits(group, lo, hi, option.shares, fewest):
                            continue
                        stages = ((lo, hi, group, option.shares), *tail)
                        if lo == 0:
                            self._judge(stages, micro)
                        else:
                            self._stage(micro, lo, rest, stages, ahead)

    def _options(self, group: tuple[str, ...], lo: int, hi: int, micro: int) -> list[_Option]:
        key = (group, lo, hi, micro)
        if key not in self.options:
            micros = self.problem.wishes.batch // micro
            sites = [self.problem.site[name] for name in group]
            out = []
            for shares in divisions(micro, len(group)):
                times = [self.problem.compute(site, lo, hi, n) for site, n in zip(sites, shares, strict=True)]
                out.append(
                    _Option(
                        micros * max(f + b for f, b in times),
                        min(f for f, _ in times) + min(b for _, b in times),
                        shares,
                    )
                )
            out.sort(key=lambda option: (option.seconds, option.shares))
            self.options[key] = out
        return self.options[key]

    def _fits(self, group: tuple[str, ...], lo: int, hi: int, shares: Sequence[int], alive: int) -> bool:
        return all(
            samples <= self.problem.most(self.problem.site[name], lo, hi, alive, len(group))
            for name, samples in zip(group, shares, strict=True)
        )

    def _judge(self, stages: Sequence[tuple[int, int, tuple[str, ...], tuple[int, ...]]], micro: int) -> None:
        count = len(stages)
        costs = None
        for keeps in _warm_ups(count, self.problem.wishes.batch // micro):
            plan = assemble(
                self.problem,
                [
                    Stage(
                        lo=lo,
                        hi=hi,
                        shares=tuple(Share(device=d, samples=n) for d, n in zip(group, shares, strict=True)),
                        warm_up=keep,
                    )
                    for (lo, hi, group, shares), keep in zip(stages, keeps, strict=True)
                ],
                micro,
                "exhaustive",
                self.problem.wishes.order,
            )
            if costs is None:
                costs = costs_of(plan, self.problem)
                if lower_bound(plan, costs) >= self.seconds:
                    return
            if fits(plan, self.problem) and (seconds := self.judge(plan, costs)) < self.seconds:
                self.best, self.seconds = plan, seconds


def _warm_ups(stages: int, micros: int) -> Iterator[tuple[int, ...]]:
    """Every K of each stage that never rises along the stages, largest first."""
    choices = [
        sorted({min(2 * (stages - n) - 1, micros), min(stages - n, micros)}, reverse=True) for n in range(stages)
    ]
    for keeps in itertools.product(*choices):
        if all(a >= b for a, b in itertools.pairwise(keeps)):
            yield keeps


def divisions(samples: int, devices: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each device at least one of the samples."""
    for bars in itertools.combinations(range(1, samples), devices - 1):
        edges = (0, *bars, samples)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def exhaustive(problem: Problem, judge: Judge) -> Plan | None:
    """Return the best plan of all.

    Raises:
        InputError: the problem is not small.
    """
    if len(problem.sites) > MOST_DEVICES or problem.sums.count > MOST_LAYERS:
        raise InputError(
            f"The planner exhaustive takes at most {MOST_DEVICES} devices and {MOST_LAYERS} layers; there are "
            f"{len(problem.sites)} and {problem.sums.count}.",
            "Use asteroid, or fewer plan.devices and plan.layers.",
        )
    first = search(problem, judge)
    seconds = float("inf") if first is None or first.predicted_s is None else first.predicted_s
    every = _Search(problem, judge, first, seconds)
    every.run()
    if every.best is None:
        return None
    return every.best.model_copy(update={"planner": "exhaustive", "predicted_s": every.seconds})
