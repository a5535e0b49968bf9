"""Measures this device's way through the broker, up and down at once, by sending tensors to itself.

Alone it gives the speed of the device's own link; when all devices do it together, the sum tells what the broker's
link, which they share, can carry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from pydantic import Field

from asteroid_core.clock import Clock
from asteroid_core.link.base import CHUNK_BYTES
from asteroid_core.plan import Frozen
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.tensor import Kind, Tag, Tensor

SHORT_BYTES = CHUNK_BYTES
LONG_BYTES = 5 * CHUNK_BYTES
SMALL_COUNT = 10
COUNT = 3
BUDGET_S = 6.0
"""Seconds after which a slow link is not probed any more."""
TOGETHER_S = 1.0
"""Seconds for which everybody sends at once."""
LEAD_S = 0.2
"""Seconds before and after them in which not everybody sends yet, or any more."""
UNDER_WAY = 4
"""Tensors that a device keeps on their way meanwhile."""
ASK_ALONE, ASK_TOGETHER = 0, 1
"""What the coordinator's probe asks for (its micro-batch number); the answer carries it back, with the two figures."""


class ProbePort(Protocol):
    """What a probe needs of a link."""

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor."""

    def receive(self, timeout: float | None = None) -> Received | None:
        """Return the next tensor."""

    def release(self, received: Received) -> None:
        """Say that it has been taken."""


class LinkSpeed(Frozen):
    """A device's way through the broker and back.

    Attributes:
        bytes_per_s: of its link.
        message_s: one small tensor.
        cpu_s_per_byte: processor time of sending or receiving a byte.
    """

    bytes_per_s: float = Field(gt=0)
    message_s: float = Field(ge=0)
    cpu_s_per_byte: float = Field(default=0.0, ge=0)


def alone(
    link: ProbePort, me: str, generation: int, clock: Clock, poll: Callable[[], object], cpu: Clock | None = None
) -> LinkSpeed:
    """Measure the link while nobody else uses it.

    A broker passes a chunk on only when it has all of it, so a tensor takes one chunk longer than its bytes; the
    difference between a long and a short one does not.

    Args:
        link: to measure.
        me: this device.
        generation: of the tensors.
        clock: the time.
        poll: called while waiting.
        cpu: processor time of this process; None: not measured.
    """
    small = Tensor.of_numpy(np.zeros(16, np.float32))
    short = Tensor.of_numpy(np.zeros(SHORT_BYTES, np.uint8))
    long = Tensor.of_numpy(np.zeros(LONG_BYTES, np.uint8))
    number = 0

    def trip(tensor: Tensor) -> float:
        nonlocal number
        number += 1
        begin = clock.now()
        link.send(me, Tag(Kind.PROBE, generation, micro=number), tensor)
        while True:
            poll()
            if _mine(link, me, number):
                return clock.now() - begin

    message_s = sorted(trip(small) for _ in range(SMALL_COUNT))[SMALL_COUNT // 2]
    begin, used = clock.now(), cpu.now() if cpu is not None else 0.0
    shorts: list[float] = []
    longs: list[float] = []
    while len(longs) < COUNT and (not longs or clock.now() - begin < BUDGET_S):
        shorts.append(trip(short))
        longs.append(trip(long))
    spent = 0.0
    if cpu is not None:  # every byte goes up and comes down
        spent = max(cpu.now() - used, 0.0) / (2 * len(longs) * (SHORT_BYTES + LONG_BYTES))
    more = sorted(longs)[len(longs) // 2] - sorted(shorts)[len(shorts) // 2]
    # One that is faster than the clock and the scheduler can tell apart has no difference.
    speed = (LONG_BYTES - SHORT_BYTES) / more if more > 0 else LONG_BYTES / max(min(longs), 1e-6)
    return LinkSpeed(bytes_per_s=speed, message_s=message_s, cpu_s_per_byte=spent)


def together(link: ProbePort, me: str, generation: int, clock: Clock, poll: Callable[[], object]) -> float:
    """Return the bytes per second that come back while everybody sends."""
    tensor = Tensor.of_numpy(np.zeros(SHORT_BYTES, np.uint8))
    sent = 0
    for _ in range(UNDER_WAY):
        sent += 1
        link.send(me, Tag(Kind.PROBE, generation, micro=sent), tensor)
    begin = clock.now()
    back, first, last = 0, 0.0, 0.0
    counted = 0
    while back < sent:
        poll()
        if not _mine(link, me, None):
            continue
        back += 1
        now = clock.now() - begin
        if LEAD_S <= now <= LEAD_S + TOGETHER_S:
            if counted == 0:
                first = now
            counted, last = counted + 1, now
        if now < 2 * LEAD_S + TOGETHER_S:
            sent += 1
            link.send(me, Tag(Kind.PROBE, generation, micro=sent), tensor)
    if counted > 1:
        return (counted - 1) * SHORT_BYTES / max(last - first, 1e-6)
    return back * SHORT_BYTES / max(clock.now() - begin, 1e-6)


def _mine(link: ProbePort, me: str, number: int | None) -> bool:
    received = link.receive(0.2)
    if received is None:
        return False
    link.release(received)
    return received.src == me and received.tag.kind is Kind.PROBE and number in (None, received.tag.micro)
