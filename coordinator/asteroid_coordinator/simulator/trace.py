"""What a simulated round looked like: when each device did what, and what it waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from asteroid_core.schedule import Instruction


@dataclass(frozen=True)
class Span:
    """A piece of computation.

    Attributes:
        device: who did it.
        item: the instruction.
        start: seconds from the beginning of the round.
        end: seconds from the beginning of the round.
    """

    device: str
    item: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Transfer:
    """One tensor on its way.

    Attributes:
        source: who sent it.
        target: who got it.
        item: the instruction that sent it.
        start: when its first byte left.
        end: when its last byte was there.
    """

    source: str
    target: str
    item: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Parts:
    """What a device did with the round; the three add up to one.

    Attributes:
        busy: it computed.
        communicating: it did not compute, and a tensor was on its way to or from it.
        waiting: neither.
    """

    busy: float
    communicating: float
    waiting: float


@dataclass(frozen=True)
class Trace:
    """One simulated round.

    Attributes:
        round_s: from its beginning until the last device has stepped.
        spans: computations in order of their beginning.
        transfers: tensors in order of their beginning.
        peak_alive: for each device, most micro-batches whose activations were held at once.
    """

    round_s: float
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    peak_alive: dict[str, int]

    def busy(self, device: str) -> float:
        """Part of the round that a device computed."""
        total = sum(span.end - span.start for span in self.spans if span.device == device)
        return total / self.round_s if self.round_s > 0 else 0.0

    def parts(self, device: str) -> Parts:
        """How a device spent the round; a tensor that travels while it computes costs it nothing."""
        if self.round_s <= 0:
            return Parts(0.0, 0.0, 1.0)
        computing = [(span.start, span.end) for span in self.spans if span.device == device]
        moving = [(m.start, m.end) for m in self.transfers if device in (m.source, m.target)]
        busy = _covered(computing) / self.round_s
        either = _covered(computing + moving) / self.round_s
        return Parts(busy, either - busy, max(1.0 - either, 0.0))

    def chrome(self) -> str:
        """The trace as JSON for chrome://tracing and Perfetto: one process a device, computations and transfers."""
        numbers = {device: number for number, device in enumerate(self.peak_alive)}
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": device}}
            for device, number in numbers.items()
        ]
        for span in self.spans:
            events.append(_event(str(span.item), numbers[span.device], 0, span.start, span.end))
        for move in self.transfers:
            events.append(_event(f"{move.item} to {move.target}", numbers[move.source], 1, move.start, move.end))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def _event(name: str, process: int, thread: int, start: float, end: float) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": process, "tid": thread, "ts": start * 1e6, "dur": (end - start) * 1e6}
