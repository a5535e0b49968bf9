"""Puts the parts of a checkpoint together as leaders send them, and writes it beside everything else that goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from asteroid_coordinator.checkpoint import Checkpoints
from asteroid_coordinator.stock import StatePart
from asteroid_core.errors import AsteroidError
from asteroid_core.plan import Plan
from asteroid_core.wire.safe import Array, unpack


class Saver:
    """Writes the checkpoints of one job.

    Args:
        checkpoints: where they lie.
        saved: called with rounds and generation of one that is on disk.
        failed: called with its rounds and the reason if one cannot be written; training goes on with the last good one.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        saved: Callable[[int, int], None],
        failed: Callable[[int, AsteroidError], None],
    ) -> None:
        self._checkpoints, self._saved, self._failed = checkpoints, saved, failed
        self._parts: dict[int, dict[int, memoryview]] = {}
        self._writing = threading.Lock()

    def clear(self) -> None:
        """A new generation begins: parts of the old one will never be whole."""
        self._parts.clear()

    def add(self, part: StatePart, plan: Plan) -> None:
        """Take what a stage's leader sent; the last one of a round has it written."""
        if part.generation != plan.generation or part.source not in plan.devices:
            return
        parts = self._parts.setdefault(part.rounds, {})
        parts[plan.stage_of(part.source)] = part.data
        if len(parts) < len(plan.stages):
            return
        self._parts = {rounds: p for rounds, p in self._parts.items() if rounds > part.rounds}
        # A disk is slow, and losses must be answered meanwhile.
        threading.Thread(target=self._write, args=(part, list(parts.values())), name="checkpoint", daemon=True).start()

    def _write(self, part: StatePart, parts: list[memoryview]) -> None:
        with self._writing:
            try:
                whole: dict[str, Array] = {}
                for data in parts:
                    whole.update(unpack(data))
                self._checkpoints.write(part.rounds, whole, {"generation": part.generation})
            except AsteroidError as error:
                self._failed(part.rounds, error)
                return
        self._saved(part.rounds, part.generation)
