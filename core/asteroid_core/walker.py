"""Walks one device's schedule: the only interpreter of instructions.

In: what happened (a tensor arrived, a computation ended). Out: what may start now. No clock, no socket, no tensor.
The worker drives it with a backend and a link, the simulator with costs and virtual time, the tests with nothing, so
prediction and execution can differ in cost but never in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from asteroid_core.schedule import COMPUTES, WAITS, Instruction, Op


class ScheduleWalker:
    """Position in a list of instructions."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._todo = list(reversed(instructions))
        self._arrived: set[tuple[Op, int | None]] = set()
        self._busy: Instruction | None = None
        self._alive: set[int] = set()
        self.peak = 0
        """most micro-batches whose activations were alive at once"""

    @property
    def finished(self) -> bool:
        """Whether nothing is left and nothing runs."""
        return not self._todo and self._busy is None

    @property
    def busy(self) -> bool:
        """Whether a computation runs."""
        return self._busy is not None

    @property
    def waiting_for(self) -> Instruction | None:
        """The instruction that holds the device up, if any."""
        return self._busy or (self._todo[-1] if self._todo else None)

    @property
    def alive(self) -> int:
        """Micro-batches whose activations are held now."""
        return len(self._alive)

    def arrived(self, op: Op, number: int | None = None) -> None:
        """Note that all that ``op`` and ``number`` waits for is here (twice is once)."""
        if op not in WAITS:
            raise ValueError(f"{op.value} does not wait for anything")
        self._arrived.add((op, number))

    def done(self, instruction: Instruction) -> None:
        """Note that the computation that was started has ended.

        Raises:
            ValueError: another one was running.
        """
        if instruction != self._busy:
            raise ValueError(f"{instruction} ended, but {self._busy} was running")
        self._busy = None

    def ready(self) -> list[Instruction]:
        """Return what starts now: sends and frees, then at most one computation."""
        out: list[Instruction] = []
        while self._todo and self._busy is None:
            head = self._todo[-1]
            if head.op in WAITS:
                if (head.op, head.number) not in self._arrived:
                    break
                self._arrived.discard((head.op, head.number))
                self._todo.pop()
                continue
            self._todo.pop()
            if head.op is Op.FORWARD and head.number is not None:
                self._alive.add(head.number)
                self.peak = max(self.peak, len(self._alive))
            elif head.op is Op.FREE and head.number is not None:
                self._alive.discard(head.number)
            if head.op in COMPUTES:
                self._busy = head
            out.append(head)
        return out
