"""The product's links without their threads: the same loop, one turn at a time, woken by the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tests.simulation.broker import SimTransport
from tests.simulation.world import Event, Inbox, World

from asteroid_core.link.base import Broker, WillFactory
from asteroid_core.link.control import ControlLink
from asteroid_core.link.loop import IDLE_POLL, LinkLoop
from asteroid_core.link.tensors import TensorLink
from asteroid_core.wire.credit import Flow

FLOW = Flow(window=1 << 14, held=1 << 13, retry=0.3, max_retry=2.0)
"""A small window, so that credit runs out now and then."""


class _Turns(LinkLoop):
    """Replaces the thread of a link by turns."""

    world: World
    _transport: SimTransport
    _next: Event | None

    def _begin(self, world: World, transport: SimTransport) -> None:
        self.world, self._next = world, None
        transport.on_wake = self._soon

    def _start(self, check: Callable[[], object] = lambda: None) -> None:
        self._transport.connect(self, self._will)
        check()
        self._soon()

    def _soon(self, wait: float = 0.0) -> None:
        when = self.world.now + wait
        if self._next is not None and not self._next.cancelled:
            if self._next.when <= when:
                return
            self._next.cancelled = True
        self._next = self.world.at(when, self._turn)

    def _turn(self) -> None:
        """What ``LinkLoop._run`` does between two sleeps."""
        self._next = None
        transport = self._transport
        if self._stopping is not None or transport.dead:
            return
        self._drain()
        now = self.world.now
        if not transport.connected:
            self._reconnect(now)
        wait = min(self.work(now), IDLE_POLL)
        if not transport.connected:
            wait = max(0.0, min(wait, self._retry_at - now))
        transport.poll(0.0)
        self._soon(0.0 if self._commands or transport.pending else wait)

    def close(self, graceful: bool = True) -> None:
        if self._stopping is None:
            self._drain()
            self._stopping = graceful
            self._transport.close(graceful)

    def die(self, notice: float) -> None:
        """The process that owns it is gone."""
        self._stopping = False
        self._transport.die(notice)


class SimTensorLink(_Turns, TensorLink):
    """The tensor link."""

    def __init__(
        self, world: World, transport: SimTransport, job: str, me: str, will: WillFactory | None = None
    ) -> None:
        events: Any = Inbox(world)
        TensorLink.__init__(
            self, cast("Any", transport), Broker("simulated"), job, me, will=will, flow=FLOW,
            chunk_bytes=1 << 10, events=events,
        )  # fmt: skip
        self._received = cast("Any", Inbox(world))
        self._begin(world, transport)

    def flush(self, timeout: float) -> bool:
        """Wait until all is acknowledged."""
        until = self.world.now + timeout
        while self._transfers and self.world.now < until:
            self.world.sleep(0.05)
        return not self._transfers


class SimControlLink(_Turns, ControlLink):
    """The control link; ``Uplink`` of a supervisor is one too."""

    taken_over_sentence = "another client took the name (simulated)"
    beat = 0.0

    def __init__(self, world: World, transport: SimTransport, will: WillFactory, events: Any) -> None:
        ControlLink.__init__(self, cast("Any", transport), will, events)
        self._begin(world, transport)

    def flush(self, timeout: float) -> bool:
        """Wait until the broker has confirmed all."""
        until = self.world.now + timeout
        while not self._transport.idle() and self.world.now < until:
            self.world.sleep(0.05)
        return self._transport.idle()
