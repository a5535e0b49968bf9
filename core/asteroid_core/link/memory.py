"""A broker in this process: retained messages, wills, QoS 1 with redelivery, sessions, wildcards, faults on purpose.

For tests, simulations and ``plan --simulate``: the same links run on it as on a network. Like mosquitto it keeps at
most ``max_queued`` messages for a client that does not read and drops what is beyond, although the publisher got its
acknowledgement.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import (
    Connected,
    Disconnected,
    Handler,
    Publication,
    Refused,
    Subscription,
    Will,
    WillFactory,
)
from asteroid_core.link.reasons import publish_refused

MAX_QUEUED = 1000


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription filter covers a topic (MQTT 5.0, 4.7)."""
    wanted, have = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i >= len(have) or level not in ("+", have[i]):
            return False
    return len(wanted) == len(have)


@dataclass(frozen=True)
class Delivery:
    """A message on its way to one client; ``retain`` is set if it was kept from before the subscription."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    response_topic: str | None = None
    correlation: bytes | None = None


@dataclass
class _Session:
    transport: MemoryTransport | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    queue: deque[Delivery] = field(default_factory=deque)
    keep: bool = False
    will: Will | None = None


Fault = Callable[[str, Delivery], int]
"""(client id, message) -> how many copies arrive: 0 loses it, 2 doubles it."""


class MemoryBroker:
    """See the module's header.

    Args:
        max_queued: messages kept for one client.
        max_packet: limit that clients are told.
        fault: asked for each delivery.
        allowed: (client id, topic) -> whether the client may publish there.
    """

    def __init__(
        self,
        max_queued: int = MAX_QUEUED,
        max_packet: int = 256 << 20,
        fault: Fault | None = None,
        allowed: Callable[[str, str], bool] | None = None,
    ) -> None:
        self.max_queued = max_queued
        self.max_packet = max_packet
        self.fault = fault
        self.allowed = allowed
        self.up = True
        self.dropped = 0
        self.most_queued = 0
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._retained: dict[str, Delivery] = {}

    def attach(self, client_id: str, transport: MemoryTransport, keep: bool, clean: bool, will: Will | None) -> bool:
        """A client connects; return whether it had a session. An older connection of the same id is cut."""
        if not self.up:
            raise BrokerError("The broker in memory is stopped.", "Start it.")
        self.kill(client_id)
        with self._lock:
            session = self._sessions.get(client_id)
            present = session is not None and not clean
            if session is None or clean:
                session = self._sessions[client_id] = _Session()
            session.transport, session.keep, session.will = transport, keep, will
            return present

    def detach(self, client_id: str, transport: MemoryTransport, graceful: bool) -> None:
        """A client goes, with its will unless it says goodbye."""
        with self._lock:
            session = self._sessions.get(client_id)
            if session is None or session.transport is not transport:
                return
            will, session.will, session.transport = session.will, None, None
            if not session.keep:
                del self._sessions[client_id]
        if will is not None and not graceful:
            self.publish(client_id, Publication(will.topic, (will.payload,), will.qos, will.retain))

    def kill(self, client_id: str) -> None:
        """Cut a client's connection; its will is published."""
        with self._lock:
            session = self._sessions.get(client_id)
            transport = session.transport if session else None
        if transport is not None:
            self.detach(client_id, transport, graceful=False)
            transport.cut()

    def clients(self) -> list[str]:
        """Ids of those that are connected."""
        with self._lock:
            return [name for name, session in self._sessions.items() if session.transport is not None]

    def stop(self) -> None:
        """Cut everybody without wills and forget all, as a broker without persistence does."""
        self.up = False
        with self._lock:
            transports = [s.transport for s in self._sessions.values() if s.transport is not None]
            self._sessions.clear()
            self._retained.clear()
        for transport in transports:
            transport.cut()

    def start(self) -> None:
        """Take connections again."""
        self.up = True

    def subscribe(self, client_id: str, subscriptions: tuple[Subscription, ...]) -> None:
        """Subscribe a client and hand it the retained messages that match."""
        with self._lock:
            session = self._sessions.get(client_id)
            if session is None:
                return
            for subscription in subscriptions:
                session.subscriptions[subscription.filter] = subscription
                for topic, kept in self._retained.items():
                    if matches(subscription.filter, topic):
                        self._deliver(client_id, session, kept)

    def publish(self, client_id: str, publication: Publication) -> bool:
        """Hand a message to every subscriber; return whether the publisher was allowed to."""
        if self.allowed is not None and not self.allowed(client_id, publication.topic):
            return False
        topic, payload = publication.topic, b"".join(publication.parts)
        delivery = Delivery(topic, payload, publication.qos, False, publication.response_topic, publication.correlation)
        with self._lock:
            if publication.retain:
                self._retained.pop(topic, None)
                if payload:
                    self._retained[topic] = Delivery(topic, payload, publication.qos, True)
            for name, session in self._sessions.items():
                hits = [s for s in session.subscriptions.values() if matches(s.filter, topic)]
                if any(not (s.no_local and name == client_id) for s in hits):
                    self._deliver(name, session, delivery)
        return True

    def _deliver(self, name: str, session: _Session, delivery: Delivery) -> None:
        if session.transport is None and delivery.qos == 0:
            return
        for _ in range(1 if self.fault is None else self.fault(name, delivery)):
            if len(session.queue) >= self.max_queued:
                self.dropped += 1
                continue
            session.queue.append(delivery)
            self.most_queued = max(self.most_queued, len(session.queue))
        if session.transport is not None:
            session.transport.wake()

    def first(self, client_id: str, transport: MemoryTransport) -> Delivery | None:
        """The oldest message for a client; it stays queued until ``confirm``."""
        with self._lock:
            session = self._sessions.get(client_id)
            if session is None or session.transport is not transport or not session.queue:
                return None
            return session.queue[0]

    def confirm(self, client_id: str, transport: MemoryTransport) -> None:
        """The client has handled its oldest message. If it dies before this, the message comes again."""
        with self._lock:
            session = self._sessions.get(client_id)
            if session is not None and session.transport is transport and session.queue:
                session.queue.popleft()


class MemoryTransport:
    """A client of a MemoryBroker.

    Args:
        broker: where to connect.
        client_id: its id.
        clean_start: forget a former session.
        keep_session: the broker keeps the session when the connection is gone.
    """

    def __init__(
        self, broker: MemoryBroker, client_id: str, *, clean_start: bool = True, keep_session: bool = False
    ) -> None:
        self._broker = broker
        self._client_id = client_id
        self._clean = clean_start
        self._keep = keep_session
        self._connected = False
        self._cut = False
        self._signal = threading.Event()
        self._handler: Handler | None = None
        self._waiting: list[Publication] = []

    @property
    def max_packet(self) -> int:
        """Largest packet that the broker takes."""
        return self._broker.max_packet

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connected

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        """Connect."""
        connection = uuid4().hex
        self._handler = handler
        self._cut = False
        present = self._broker.attach(
            self._client_id, self, self._keep, self._clean, will(connection) if will is not None else None
        )
        self._connected = True
        handler.on_event(Connected(connection, present))
        waiting, self._waiting = self._waiting, []
        for publication in waiting:
            self.publish(publication)

    def cut(self) -> None:
        """The broker ends the connection; any thread."""
        self._cut = True
        self._signal.set()

    def poll(self, timeout: float) -> None:
        """Handle what has come."""
        handler = self._handler
        if not self._broker_has_something():
            self._signal.wait(max(timeout, 0.0))
        self._signal.clear()
        if self._cut and self._connected and handler is not None:
            self._connected = False
            handler.on_event(Disconnected("The connection to the broker was lost (in memory)."))
        if not self._connected or handler is None:
            return
        end = time.monotonic() + 0.01
        while not self._cut and (delivery := self._broker.first(self._client_id, self)) is not None:
            handler.on_message(
                delivery.topic,
                memoryview(delivery.payload),
                delivery.retain,
                delivery.response_topic,
                delivery.correlation,
            )
            self._broker.confirm(self._client_id, self)
            if time.monotonic() > end:
                return

    def _broker_has_something(self) -> bool:
        return self._connected and self._broker.first(self._client_id, self) is not None

    def publish(self, publication: Publication) -> None:
        """Publish at once; a durable message waits for a connection."""
        if not self._connected or self._cut:
            if publication.durable:
                self._waiting.append(publication)
            return
        if not self._broker.publish(self._client_id, publication) and publication.qos and self._handler is not None:
            self._handler.on_event(Refused(publication.topic, publish_refused(publication.topic, 0x87)))

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Subscribe."""
        self._broker.subscribe(self._client_id, subscriptions)

    def room(self) -> bool:
        """Whether another chunk may go."""
        return self._connected and not self._cut

    def subscribed(self) -> bool:
        """Subscriptions are in force at once."""
        return self._connected

    def idle(self) -> bool:
        """Nothing waits here but what was published without a connection."""
        return not self._waiting

    def wake(self) -> None:
        """End a ``poll`` from another thread."""
        self._signal.set()

    def close(self, graceful: bool) -> None:
        """Disconnect."""
        self._connected = False
        self._broker.detach(self._client_id, self, graceful)
