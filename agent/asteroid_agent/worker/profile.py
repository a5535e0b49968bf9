"""What a device does when it is profiled: measures its link when the coordinator asks, then the layers it is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from asteroid_agent.worker.config import WorkerConfig
from asteroid_agent.worker.measure import Bundle, measure
from asteroid_agent.worker.ports import TensorPort
from asteroid_agent.worker.shell import WorkerShell
from asteroid_core.clock import Clock
from asteroid_core.errors import WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.probe import ASK_TOGETHER, LinkSpeed, alone, together
from asteroid_core.profile import DeviceProfile
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)


def profile_device(
    config: WorkerConfig,
    link: TensorPort,
    shell: WorkerShell,
    clock: Clock,
    cpu: Clock,
    resident_mb: Callable[[], float],
) -> DeviceProfile:
    """Do as the coordinator asks: measure the link, alone and with the others, then the layers; return the profile.

    Raises:
        WireError: somebody else than the coordinator sends.
        ProgramError: the layers cannot be run here.
    """
    speed: LinkSpeed | None = None
    while True:
        shell.messages(0.0)
        received = link.receive(0.2)
        if received is None:
            continue
        kind, asked = received.tag.kind, received.tag.micro
        if received.src != COORDINATOR or kind not in (Kind.PROGRAM, Kind.PROBE):
            raise WireError(f"{received.src} sent a {kind.value}, only the coordinator's layers are expected.")
        if kind is Kind.PROGRAM:
            bundle = Bundle.from_bytes(bytes(received.tensor.data))
            link.release(received)
            break
        link.release(received)

        def poll() -> None:
            shell.messages(0.0)

        if asked == ASK_TOGETHER:
            answer = [together(link, config.agent, 1, clock, poll), 0.0]
        else:
            speed = alone(link, config.agent, 1, clock, poll, cpu)
            answer = [speed.bytes_per_s, speed.message_s]
        link.send(COORDINATOR, Tag(Kind.PROBE, 1, micro=asked), Tensor.of_numpy(np.array(answer)))
    measured = measure(
        bundle, config.cores, clock, cpu, lambda done, total: log.debug("measured %d of %d", done, total)
    )
    # Afterwards: the engine is loaded and has run, and the layers' weights are gone again.
    runtime_mb = resident_mb()
    if speed is None:
        speed = alone(link, config.agent, 1, clock, lambda: shell.messages(0.0), cpu)
    return DeviceProfile(
        device=config.agent,
        backend="torch",
        layers=measured.layers,
        runtime_mb=runtime_mb,
        bytes_per_s=speed.bytes_per_s,
        message_s=speed.message_s,
        wire_s_per_byte=speed.cpu_s_per_byte * max(measured.stretch, 1.0),  # the link is one thread
        reduce_s_per_byte=measured.reduce_s_per_byte,
    )
