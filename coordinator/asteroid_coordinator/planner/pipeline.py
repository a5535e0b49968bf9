"""Cuts layers and a sequence of devices into stages by dynamic programming (Asteroid, Algorithm 2).

Stages are added in front, so the k-th from the end knows its K whatever their number is. Without allreduce the round
time of a pipeline is max over its steps of M E + the steps before it (the aligned rule, Eq. 11); a head stage adds the
same to all steps behind it, so a pipeline needs four numbers to go on from:

    A   that maximum, and no less than M T / K of any stage: just K micro-batches are between its forward and backward
    T   seconds of one micro-batch through the pipeline and back
    R   how long the latest allreduce outlasts the end of the first stage's last backward
    H   seconds that a micro-batch, with its part of the allreduce, keeps the broker's link busy
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asteroid_coordinator.planner.tables import Floats, GroupTable, Ints, Tables

FEW = 10
"""Up to so many devices the search is exact for its order; beyond, fewer group sizes and values of K are looked at."""


@dataclass(frozen=True)
class Rules:
    """How to search.

    Attributes:
        micro: samples of a micro-batch.
        micros: micro-batches of a round.
        wide: K = 2 (P - p) - 1; else K = P - p.
        gpipe: every micro-batch is alive at the turn.
        stages: most stages.
        skip: devices may be left out, except those that must take part.
        paper: links as in the paper: both directions share one, the slowest of two groups counts, no broker.
    """

    micro: int
    micros: int
    wide: bool = True
    gpipe: bool = False
    stages: int = 64
    skip: bool = True
    paper: bool = False

    def warm_up(self, from_end: int) -> int:
        """K of the stage that is the ``from_end``-th from the end (the last one is 1)."""
        if self.gpipe:
            return self.micros
        return min(2 * from_end - 1 if self.wide else from_end, self.micros)


@dataclass(frozen=True)
class Cut:
    """One stage of a structure.

    Attributes:
        lo: first layer.
        hi: one past the last layer.
        members: indices of its devices.
        warm_up: K.
    """

    lo: int
    hi: int
    members: tuple[int, ...]
    warm_up: int


@dataclass(frozen=True)
class Found:
    """A structure, with what the formula expects of it.

    Attributes:
        seconds: round time by the formula.
        cuts: its stages.
    """

    seconds: float
    cuts: tuple[Cut, ...]


@dataclass
class _State:
    """The best pipeline for each first edge, with the devices from some position on."""

    objective: Floats
    a: Floats
    t: Floats
    r: Floats
    h: Floats
    link: Floats
    slowest: Floats
    """slowest link of the head group (paper)"""
    end: Ints
    """edge where the head stage ends"""
    after: Ints
    """position of the first device behind the head group"""
    begin: Ints
    """position of the head group's first device (those before it are left out)"""

    @classmethod
    def empty(cls, edges: int) -> _State:
        """No pipeline yet."""

        def floats() -> Floats:
            return np.full(edges, np.inf)

        def ints() -> Ints:
            return np.zeros(edges, np.int64)

        return cls(floats(), floats(), floats(), floats(), floats(), floats(), floats(), ints(), ints(), ints())

    def take(self, other: _State) -> None:
        """Keep the better one for each first edge."""
        better = other.objective < self.objective
        if better.any():
            for name, mine in vars(self).items():
                mine[better] = getattr(other, name)[better]


def solve(tables: Tables, order: tuple[int, ...], rules: Rules) -> list[Found]:
    """Return the best structure for each number of stages and each first device.

    Args:
        tables: times and memory.
        order: devices; a stage is a contiguous part of it.
        rules: of the search.
    """
    devices, edges = len(order), tables.count + 1
    names = [tables.problem.sites[i].name for i in order]
    wishes = tables.problem.wishes
    needed = [not rules.skip or wishes.must(name) for name in names]
    latest = max((i for i, must in enumerate(needed) if must), default=-1)
    sizes = _sizes(devices)
    levels: list[list[_State]] = []
    hub = tables.problem.network.hub_bytes_per_s if not tables.problem.network.direct and not rules.paper else None
    for number in range(1, min(rules.stages, devices, tables.count) + 1):
        level = [_State.empty(edges) for _ in range(devices + 1)]
        alive = min(_rounded(rules.warm_up(number), devices), rules.micros)
        for i in range(devices - 1, -1, -1):
            for size in sizes:
                j = i + size
                if j > devices or (number == 1 and latest >= j):
                    continue
                if size > rules.micro:
                    break
                sub = levels[-1][j] if number > 1 else None
                if sub is not None and not np.isfinite(sub.objective).any():
                    continue
                table = tables.group(order[i:j], rules.micro, alive)
                if table is None:
                    continue
                slowest = min(tables.rate[m] for m in order[i:j])
                level[i].take(_extend(tables, rules, rules.warm_up(number), table, sub, slowest, hub, i, j))
            if not needed[i]:
                level[i].take(level[i + 1])
        levels.append(level)
        if not any(np.isfinite(state.objective).any() for state in level):
            break
    return _read(tables, order, rules, levels, needed)


def _sizes(devices: int) -> list[int]:
    out = list(range(1, (devices if devices <= FEW else 4) + 1))
    while out[-1] < devices:
        out.append(min(out[-1] + out[-1] // 2, devices))
    return out


def _rounded(alive: int, devices: int) -> int:
    """K for the memory check: with many devices rounded up, so that the tables of a group serve several stages."""
    if devices <= FEW or alive <= 3:
        return alive
    out = 4
    while out < alive:
        out += out // 2
    return out


def _extend(
    tables: Tables,
    rules: Rules,
    keep: int,
    table: GroupTable,
    sub: _State | None,
    slowest: float,
    hub: float | None,
    begin: int,
    after: int,
) -> _State:
    """Put a head stage on devices ``[begin, after)`` before the pipelines of ``sub`` (None: it is the last stage)."""
    micros, edges = rules.micros, tables.count + 1
    both = table.forward + table.backward
    shared = 0.0 if hub is None else 1.0 / hub
    reduced = table.allreduce * slowest * shared * table.replicas / micros
    if sub is None:
        last = tables.count
        a, r, h = micros * both[:, last], table.allreduce[:, last], reduced[:, last]
        objective = np.maximum(a + r, micros * h)
        link = table.link[:, last].copy()
        whole = np.full(edges, slowest)
        end = np.full(edges, last)
        return _State(
            objective, a, both[:, last].copy(), r, h, link, whole, end, np.full(edges, after), np.full(edges, begin)
        )
    if rules.paper:
        seconds = rules.micro / np.minimum(slowest, sub.slowest)
        forward, backward = tables.activation * seconds, tables.gradient * seconds
        busy = forward + backward
        forward, backward, busy = (np.broadcast_to(x, both.shape) for x in (forward, backward, busy))
    else:
        seconds = np.maximum(table.link, np.where(np.isfinite(sub.link), sub.link, 0.0)[None, :])
        forward, backward = seconds * tables.activation[None, :], seconds * tables.gradient[None, :]
        busy = np.maximum(forward, backward)
    cross = forward + backward
    a = np.maximum(np.maximum(micros * both, both + micros * busy + (cross - busy)), both + cross + sub.a[None, :])
    t = both + cross + sub.t[None, :]
    if not rules.paper:
        a = np.maximum(a, micros / keep * t)
    r = np.maximum(table.allreduce, sub.r[None, :] - table.backward - backward)
    load = rules.micro * shared * (tables.activation + tables.gradient)
    h = reduced + load[None, :] + sub.h[None, :]
    objective = np.maximum(a + np.maximum(r, 0.0), micros * h)
    objective[:, -1] = np.inf  # something has to be left for the stages behind
    end = objective.argmin(axis=1)
    rows = np.arange(edges)
    return _State(
        objective[rows, end],
        a[rows, end],
        t[rows, end],
        r[rows, end],
        h[rows, end],
        table.link[rows, end],
        np.full(edges, slowest),
        end,
        np.full(edges, after),
        np.full(edges, begin),
    )


def _read(
    tables: Tables, order: tuple[int, ...], rules: Rules, levels: list[list[_State]], needed: list[bool]
) -> list[Found]:
    """Walk back the choices of every pipeline that covers all layers."""
    out = []
    first = next((i for i, must in enumerate(needed) if must), len(order))
    for number, level in enumerate(levels, 1):
        seen = set()
        for position in range(min(first, len(order) - 1) + 1):
            state = level[position]
            if not np.isfinite(state.objective[0]) or int(state.begin[0]) in seen:
                continue
            seen.add(int(state.begin[0]))
            cuts, edge, at = [], 0, position
            for left in range(number, 0, -1):
                here = levels[left - 1][at]
                end, begin, after = int(here.end[edge]), int(here.begin[edge]), int(here.after[edge])
                cuts.append(Cut(tables.edges[edge], tables.edges[end], order[begin:after], rules.warm_up(left)))
                edge, at = end, after
            out.append(Found(float(state.objective[0]), tuple(cuts)))
    return out
