"""Times and memory of every run of layers on every device group, as arrays: what the dynamic program looks up.

Layers may be coarsened: a run begins and ends at an edge. Arrays over runs are indexed ``[lo, hi]`` by edge numbers,
with infinity where ``hi <= lo`` or where the memory of a device does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asteroid_coordinator.planner.problem import Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

EXACT = 4
"""Up to so many devices in all, memory-bound groups are divided exactly."""
BLOCKS, COARSE_BLOCKS = 16, 8
"""A micro-batch is divided in about so many pieces, with many devices fewer; what is left goes sample by sample."""


@dataclass(frozen=True)
class GroupTable:
    """One device group on every run of layers, shape (edges, edges) each.

    Attributes:
        forward: E_f of a micro-batch, seconds.
        backward: E_b.
        link: seconds that the group's busiest link needs for one byte of each sample of a micro-batch.
        allreduce: T_a, seconds.
        replicas: devices that get a share.
    """

    forward: Floats
    backward: Floats
    link: Floats
    allreduce: Floats
    replicas: Ints


class Tables:
    """Arrays for one problem.

    Args:
        problem: what to plan.
        edges: layers at which a stage may begin, from 0 to the number of layers.
    """

    def __init__(self, problem: Problem, edges: Sequence[int]) -> None:
        self.problem, self.edges = problem, tuple(edges)
        self.count = len(self.edges) - 1
        sums = problem.sums
        cells = [(a, b) for a in range(self.count) for b in range(a + 1, self.count + 1)]
        self._lo = np.array([a for a, _ in cells])
        self._hi = np.array([b for _, b in cells])
        runs = [(self.edges[a], self.edges[b]) for a, b in cells]
        self._held = {
            replicas: np.array([sum(sums.held(lo, hi, problem.optimizer, replicas)) for lo, hi in runs], float)
            for replicas in (1, 2)
        }
        self._trainable = np.array([sums.trainable(lo, hi) for lo, hi in runs], float)
        cuts = [sums.boundary(edge) for edge in self.edges[1:-1]]
        self.activation = np.array([0.0, *(f for f, _ in cuts), 0.0])
        self.gradient = np.array([0.0, *(b for _, b in cuts), 0.0])
        self._kinds: dict[int, int] = {}
        firsts: dict[object, int] = {}
        for number, site in enumerate(problem.sites):
            self._kinds[number] = firsts.setdefault(site.profile.layers, number)
        self._units: dict[int, Floats] = {}
        self._runs = runs
        self._times: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self._groups: dict[tuple[tuple[int, ...], int, int], GroupTable | None] = {}
        self._limits: dict[tuple[int, int, int, int], Ints] = {}
        self._free: dict[tuple[tuple[int, ...], int], Ints] = {}
        self.tight = False
        """Whether the memory of some device has bound anything where more than one micro-batch was alive."""
        self.rate = [site.profile.bytes_per_s for site in problem.sites]

    def group(self, members: tuple[int, ...], micro: int, alive: int) -> GroupTable | None:
        """Return the table of a group (indices of devices); None if it can hold no run of layers.

        Args:
            members: of the group.
            micro: samples of a micro-batch.
            alive: micro-batches alive at once (K).
        """
        key = (members, micro, alive)
        if key not in self._groups:
            self._groups[key] = self._make(members, micro, alive)
        return self._groups[key]

    def _make(self, members: tuple[int, ...], micro: int, alive: int) -> GroupTable | None:
        if len(members) > micro:
            return None
        shares = self._unbound(members, micro)
        most = np.stack([self._most(m, micro, alive, len(members)) for m in members])
        over: Flags = np.any(shares > most, axis=0)
        if not over.any():
            free = (members, micro, 0)
            if free not in self._groups:
                self._groups[free] = self._table_of(members, micro, shares, ~over)
            return self._groups[free]
        self.tight = self.tight or alive > 1
        fits: Flags = ~over
        if len(members) > 1:
            shares = shares.copy()
            cells = np.flatnonzero(over)
            divide = self._greedy if len(self.problem.sites) <= EXACT else self._filled
            shares[:, cells], fits[cells] = divide(members, micro, most[:, cells], cells)
        return self._table_of(members, micro, shares, fits) if fits.any() else None

    def _table_of(self, members: tuple[int, ...], micro: int, shares: Ints, fits: Flags) -> GroupTable:
        forward, backward = (
            np.max([table[y, self._hi] - table[y, self._lo] for table, y in zip(tables, shares, strict=True)], axis=0)
            for tables in zip(*(self._table(m, micro) for m in members), strict=True)
        )
        rates = np.array([self.rate[m] for m in members])[:, None]
        replicas = (shares > 0).sum(axis=0)
        slowest = np.where(shares > 0, rates, np.inf).min(axis=0)
        allreduce = 2 * (replicas - 1) / np.maximum(replicas, 1) * self._trainable / slowest
        return GroupTable(
            self._square(np.where(fits, forward, np.inf), np.inf),
            self._square(backward, 0.0),
            self._square((shares / rates).max(axis=0), 0.0),
            self._square(allreduce, 0.0),
            self._square(replicas.astype(float), 0.0).astype(np.int64),
        )

    def _square(self, values: Floats, rest: float) -> Floats:
        out = np.full((self.count + 1, self.count + 1), rest)
        out[self._lo, self._hi] = values
        return out

    def _table(self, member: int, most: int) -> tuple[Floats, Floats]:
        """Prefix sums over the edges of forward and backward seconds, for shares of 0 to ``most`` samples."""
        key = (self._kinds[member], most)
        if key not in self._times:
            site = self.problem.sites[member]
            forward = np.zeros((most + 1, self.count + 1))
            backward = np.zeros((most + 1, self.count + 1))
            for samples in range(1, most + 1):
                f, b = self.problem.times(site, samples)
                forward[samples] = [f[edge] for edge in self.edges]
                backward[samples] = [b[edge] for edge in self.edges]
            self._times[key] = (forward, backward)
        return self._times[key]

    def _most(self, member: int, micro: int, alive: int, replicas: int) -> Ints:
        """Largest share of each run that fits into a device's memory (the formula is that of ``core.memory``)."""
        key = (member, micro, alive, min(replicas, 2))
        if key not in self._limits:
            self._limits[key] = self._limit(*key)
        return self._limits[key]

    def _limit(self, member: int, micro: int, alive: int, replicas: int) -> Ints:
        site = self.problem.sites[member]
        kind = self._kinds[member]
        if kind not in self._units:
            sums = self.problem.sums_of(site)
            self._units[kind] = np.array([sums.per_sample(lo, hi) for lo, hi in self._runs], float)
        left = site.budget_mb * 1e6 - int(site.profile.runtime_mb * 1e6) - self._held[replicas]
        each = np.maximum(alive * self._units[kind], 1e-9)
        return np.clip(np.where(left < 0, 0, left // each), 0, micro).astype(np.int64)

    def _unbound(self, members: tuple[int, ...], micro: int) -> Ints:
        """Shares where memory is no matter."""
        if len(members) == 1:
            return np.full((1, len(self._lo)), micro)
        key = (members, micro)
        if key not in self._free:
            cells = np.arange(len(self._lo))
            self._free[key], _ = self._greedy(members, micro, np.full((len(members), len(cells)), micro), cells)
        return self._free[key]

    def _filled(self, members: tuple[int, ...], micro: int, most: Ints, where: Ints) -> tuple[Ints, Flags]:
        """Cut shares to what fits, give the rest to those with room, the fastest first: nearly as good, and quick."""
        wanted = self._unbound(members, micro)[:, where]
        shares = np.minimum(wanted, most)
        left = micro - shares.sum(axis=0)
        for at in np.argsort(-wanted.sum(axis=1), kind="stable"):
            more = np.minimum(left, most[at] - shares[at])
            shares[at] += more
            left -= more
        needed = [n for n, m in enumerate(members) if self.problem.wishes.must(self.problem.sites[m].name)]
        return shares, (left == 0) & (shares[needed] > 0).all(axis=0)

    def _greedy(self, members: tuple[int, ...], micro: int, most: Ints, where: Ints) -> tuple[Ints, Flags]:
        """Divide a micro-batch on some runs: each piece goes to the device that has it done first.

        That makes the slowest as fast as can be, exactly, where times rise with samples.
        """
        lo, hi = self._lo[where], self._hi[where]
        both = np.stack([f + b for f, b in (self._table(m, micro) for m in members)])
        least = np.array([1 if self.problem.wishes.must(self.problem.sites[m].name) else 0 for m in members])
        shares = np.repeat(least[:, None], len(where), axis=1)
        left = np.full(len(where), micro - int(least.sum()))
        fits = (shares <= most).all(axis=0) & (left >= 0)
        everybody, cells = np.arange(len(members))[:, None], np.arange(len(where))
        blocks = BLOCKS if len(self.problem.sites) <= EXACT else COARSE_BLOCKS
        for block in sorted({max(micro // blocks, 1), 1}, reverse=True):
            more = np.minimum(shares + block, micro)
            following = both[everybody, more, hi] - both[everybody, more, lo]
            following[shares + block > most] = np.inf
            for _ in range(micro // block + 1):
                owner = following.argmin(axis=0)
                takes = (left >= block) & np.isfinite(following[owner, cells])
                if not takes.any():
                    break
                owner, at = owner[takes], cells[takes]
                shares[owner, at] += block
                left[at] -= block
                given = shares[owner, at]
                more = np.minimum(given + block, micro)
                seconds = both[owner, more, hi[at]] - both[owner, more, lo[at]]
                following[owner, at] = np.where(given + block > most[owner, at], np.inf, seconds)
        return shares, fits & (left == 0)
