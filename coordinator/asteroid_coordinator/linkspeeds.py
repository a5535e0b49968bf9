"""Measures the links of a cluster: each device's own, one after the other, then what the broker's link carries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from asteroid_core.clock import Clock
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.probe import ASK_ALONE, ASK_TOGETHER, LinkSpeed, ProbePort, alone
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)

ANSWER_S = 20.0
"""Seconds that a device may take for one measurement."""
NARROWER = 0.85
"""Where all together get less than this part of what each gets alone, the broker's link is what holds them up."""


@dataclass(frozen=True)
class Links:
    """What was measured.

    Attributes:
        devices: own link of each device that answered.
        coordinator: the coordinator's own.
        hub_bytes_per_s: the broker's, each direction; None: it did not hold anybody up.
    """

    devices: dict[str, LinkSpeed]
    coordinator: LinkSpeed
    hub_bytes_per_s: float | None


def measure_links(link: ProbePort, devices: Sequence[str], clock: Clock, gone: Callable[[], Collection[str]]) -> Links:
    """Ask each device to measure its link, then all at once.

    Args:
        link: the coordinator's; its job's generation is 1.
        devices: whose workers wait for what to do.
        clock: the time.
        gone: devices that have been lost meanwhile.
    """
    own = alone(link, COORDINATOR, 1, clock, lambda: None)
    speeds: dict[str, LinkSpeed] = {}
    for device in devices:
        answers = _ask(link, [device], ASK_ALONE, clock, gone)
        if device in answers:
            speeds[device] = LinkSpeed(bytes_per_s=answers[device][0], message_s=answers[device][1])
    if len(speeds) < 2:
        return Links(speeds, own, None)
    shared = _ask(link, list(speeds), ASK_TOGETHER, clock, gone)
    if len(shared) < len(speeds):
        return Links(speeds, own, None)
    total = sum(bytes_per_s for bytes_per_s, _ in shared.values())
    alone_s = sum(speed.bytes_per_s for speed in speeds.values())
    return Links(speeds, own, total if total < NARROWER * alone_s else None)


def _ask(
    link: ProbePort, devices: Sequence[str], what: int, clock: Clock, gone: Callable[[], Collection[str]]
) -> dict[str, tuple[float, float]]:
    """Answers of the devices that gave one in time."""
    for device in devices:
        link.send(device, Tag(Kind.PROBE, 1, micro=what), Tensor.of_numpy(np.zeros(1, np.uint8)))
    answers: dict[str, tuple[float, float]] = {}
    begin = clock.now()
    while set(devices) - set(answers) - set(gone()) and clock.now() - begin < ANSWER_S:
        received = link.receive(0.2)
        if received is None:
            continue
        values = np.frombuffer(bytes(received.tensor.data), np.float64) if received.tensor.nbytes == 16 else None
        tag, source = received.tag, received.src
        link.release(received)
        if tag.kind is not Kind.PROBE or tag.micro != what or source not in devices:
            continue
        if values is None or not np.isfinite(values).all() or values[0] <= 0 or values[1] < 0:
            log.warning("%s sent a link speed that is none", source)
            continue
        answers[source] = (float(values[0]), float(values[1]))
    return answers
