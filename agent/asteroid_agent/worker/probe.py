"""Measures this device's way through the broker: up and down at once, by sending tensors to itself.

Between two devices a transfer runs up one and down the other; the slower of the two loops is the planner's estimate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asteroid_agent.worker.ports import TensorPort
from asteroid_core.clock import Clock
from asteroid_core.wire.tensor import Kind, Tag, Tensor

BIG_BYTES = 1 << 20
BIG_COUNT = 4
BUDGET_S = 5.0
"""Seconds after which a slow link is not probed any more."""
SMALL_COUNT = 10


def probe(link: TensorPort, me: str, generation: int, clock: Clock, poll: Callable[[], object]) -> tuple[float, float]:
    """Return (bytes per second, seconds of one small tensor) through the broker and back."""
    small = Tensor.of_numpy(np.zeros(16, np.float32))
    big = Tensor.of_numpy(np.zeros(BIG_BYTES, np.uint8))
    trips = sorted(_trip(link, me, generation, small, clock, poll, i) for i in range(SMALL_COUNT))
    message_s = trips[len(trips) // 2]
    begin, speeds = clock.now(), []
    for number in range(BIG_COUNT):
        seconds = _trip(link, me, generation, big, clock, poll, SMALL_COUNT + number)
        speeds.append(BIG_BYTES / max(seconds - message_s, 1e-6))
        if clock.now() - begin > BUDGET_S:
            break
    speeds.sort()
    return speeds[len(speeds) // 2], message_s


def _trip(
    link: TensorPort, me: str, generation: int, tensor: Tensor, clock: Clock, poll: Callable[[], object], number: int
) -> float:
    begin = clock.now()
    link.send(me, Tag(Kind.PROBE, generation, micro=number), tensor)
    while True:
        poll()
        received = link.receive(0.2)
        if received is None:
            continue
        link.release(received)
        if received.src == me and received.tag.kind is Kind.PROBE and received.tag.micro == number:
            return clock.now() - begin
