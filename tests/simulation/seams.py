"""Where the product meets the outside, and what stands there during a simulated run: clock, chance, broker, engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.simulation.broker import SimBroker, SimTransport
from tests.simulation.links import SimControlLink, SimTensorLink
from tests.simulation.world import Clock, Flag, World

from asteroid_agent.supervisor import service, uplink
from asteroid_agent.worker import main as worker_main
from asteroid_agent.worker import session
from asteroid_coordinator import narrator
from asteroid_core import feeding
from asteroid_core.data.feeder import FeedPlan
from asteroid_core.link import loop, tensors
from asteroid_core.link.base import WillFactory
from asteroid_core.plan import Plan
from asteroid_core.rounds import Pass

AHEAD_BYTES = 2_000
"""A feeder waits beyond so many unacknowledged bytes: little, so that it does wait."""


def feeder(world: World) -> type[feeding.Feeder]:
    """The product's feeder as a task."""

    class SimFeeder(feeding.Feeder):
        def __init__(
            self,
            link: feeding.FeedPort,
            feed: FeedPlan,
            plan: Plan,
            steps: Iterable[Pass],
            failed: Callable[[Exception], None],
        ) -> None:
            super().__init__(link, feed, plan, steps, failed)
            self._halt: Any = Flag(world)

        def start(self) -> None:
            world.spawn(self.name, self.run)

    return SimFeeder


@contextmanager
def replaced(
    world: World, broker: SimBroker, opened: Callable[[SimTensorLink], None], **of_session: Any
) -> Iterator[None]:
    """Put the simulated world in the place of clock, broker and whatever ``of_session`` names in ``worker.session``.

    Args:
        world: gives time and chance.
        broker: takes the connections.
        opened: told each tensor link that a worker opens.
        of_session: names in ``worker.session`` and what stands there.
    """
    clock = Clock(world)

    def open_tensors(_: object, job: str, me: str, *, will: WillFactory | None = None) -> SimTensorLink:
        transport = SimTransport(broker, f"asteroid-{job}-{me}-{world.random.getrandbits(24):06x}")
        link = SimTensorLink(world, transport, job, me, will)
        opened(link)
        link.open()
        return link

    def open_uplink(_: object, agent: str, events: Any) -> SimControlLink:
        transport = SimTransport(broker, f"asteroid-agent-{agent}", keep=uplink.SESSION_S, clean=False)
        return SimControlLink(world, transport, lambda name: uplink.last_will(agent, name), events)

    random = SimpleNamespace(getrandbits=world.random.getrandbits)
    with ExitStack() as stack:
        for module in (loop, tensors, service, narrator):
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(patch.object(tensors, "random", random))
        stack.enter_context(patch.object(service, "Uplink", open_uplink))
        stack.enter_context(patch.object(worker_main, "open_tensors", open_tensors))
        stack.enter_context(patch.object(feeding, "AHEAD_BYTES", AHEAD_BYTES))
        for name, value in of_session.items():
            stack.enter_context(patch.object(session, name, value))
        yield
