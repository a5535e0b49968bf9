"""Snapshots that a worker keeps in memory: its own, and as a backup those of other devices. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from asteroid_core.held import of_names
from asteroid_core.wire.safe import Array, unpack


@dataclass(frozen=True)
class Snapshot:
    """The state of layers ``[lo, hi)`` after ``rounds`` rounds.

    Attributes:
        source: the device whose stage it is.
        generation: in which it was taken.
        rounds: completed rounds.
        lo: first layer.
        hi: one past the last layer.
        data: in the safetensors format.
    """

    source: str
    generation: int
    rounds: int
    lo: int
    hi: int
    data: memoryview

    @property
    def age(self) -> tuple[int, int]:
        """Orders snapshots: by generation, then by rounds."""
        return self.generation, self.rounds


@dataclass
class Keeper:
    """Keeps what is needed to go back to the last durable round, and what may become the next one."""

    _kept: dict[tuple[str, int, int, int, int], Snapshot] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all snapshots."""
        return sum(s.data.nbytes for s in self._kept.values())

    def snapshots(self) -> list[Snapshot]:
        """All of them, the oldest first."""
        return sorted(self._kept.values(), key=lambda s: (s.age, s.source))

    def keep(self, snapshot: Snapshot) -> None:
        """Add one; the same one again replaces the first."""
        key = (snapshot.source, snapshot.generation, snapshot.rounds, snapshot.lo, snapshot.hi)
        self._kept[key] = snapshot

    def settle(self, generation: int, rounds: int) -> None:
        """A round is durable: what is older is not needed any more."""
        self._kept = {key: s for key, s in self._kept.items() if s.age >= (generation, rounds)}

    def only(self, rounds: Collection[int]) -> None:
        """Everybody begins anew from here: snapshots of other rounds are not needed any more."""
        self._kept = {key: s for key, s in self._kept.items() if s.rounds in rounds}

    def forget(self, generation: int, rounds: int) -> None:
        """A round will never be durable."""
        self._kept = {key: s for key, s in self._kept.items() if s.age != (generation, rounds)}

    def find(self, rounds: int, names: Collection[str]) -> dict[str, Array]:
        """Return what is kept of these weights and buffers after ``rounds`` rounds, with their optimizer state.

        Raises:
            WireError: what another device sent is not a state.
        """
        out: dict[str, Array] = {}
        for snapshot in self.snapshots():
            if snapshot.rounds == rounds:
                out.update(of_names(unpack(snapshot.data), names))
        return out
