"""A broker and its clients' connections in virtual time: delays, losses, repetitions, reordering, wills, sessions.

It is at least as hostile as MQTT: chunks may be lost, doubled and reordered at will (brokers drop beyond their limits).
Control messages keep their order within a topic and a connection, but not between topics; a window of them may come
again, the newest last (what QoS 1 does after a reconnect); while a client without a session is away it misses
everything but what is retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from tests.simulation.world import World

from asteroid_core.errors import BrokerError
from asteroid_core.link import memory
from asteroid_core.link.base import (
    Connected,
    Disconnected,
    Handler,
    Publication,
    Subscription,
    Will,
    WillFactory,
)
from asteroid_core.wire import topics

DATA = topics.DATA
matches = lru_cache(maxsize=4096)(memory.matches)


@dataclass
class Weather:
    """What the network does; after ``until`` it is fair.

    Attributes:
        loss: part of the chunks that vanish.
        double: part of the messages that come again.
        slow: part of the messages that take up to ``late`` seconds.
        late: see there.
        until: the end of bad weather.
    """

    loss: float = 0.0
    double: float = 0.0
    slow: float = 0.0
    late: float = 0.0
    until: float = 0.0


@dataclass
class _Parcel:
    topic: str
    payload: bytes
    retain: bool
    qos: int


@dataclass
class _Client:
    """What the broker knows of a client id."""

    name: str
    keep: float = 0.0
    connection: Connection | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    queue: deque[_Parcel] = field(default_factory=deque)
    will: Will | None = None
    away_since: float = 0.0


class Connection:
    """One TCP connection; ``alive`` until either side or the cable breaks it."""

    def __init__(self, transport: SimTransport) -> None:
        self.transport = transport
        self.alive = True
        self.last: dict[tuple[str, bool], float] = {}
        """when the last control message of a topic arrives, per direction"""
        self.recent: dict[str, list[_Parcel]] = {}


class SimBroker:
    """See the module's header."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self.clients: dict[str, _Client] = {}
        self.retained: dict[str, _Parcel] = {}
        self.unreachable: dict[str, float] = {}
        """clients that cannot connect before a moment"""
        self._routes: dict[str, list[tuple[_Client, Subscription]]] = {}

    # Connections

    def attach(self, transport: SimTransport, will: Will | None, keep: float, clean: bool) -> bool:
        name = transport.client_id
        if self.unreachable.get(name, 0.0) > self.world.now:
            raise BrokerError("The broker cannot be reached (simulated).", "Wait.")
        client = self.clients.get(name)
        if client is not None and client.connection is not None:
            self._broken(client, taken_over=not clean)
        if client is not None and client.connection is None and self.world.now > client.away_since + client.keep:
            client = None
        present = client is not None and not clean
        if client is None or clean:
            client = self.clients[name] = _Client(name)
            self._routes.clear()
        client.keep, client.will = keep, will
        client.connection = transport.connection = Connection(transport)
        waiting, client.queue = client.queue, deque()
        for parcel in waiting:
            self._send(client, parcel)
        return present

    def noticed(self, connection: Connection, name: str) -> None:
        """The broker notices that a connection is gone."""
        client = self.clients.get(name)
        if client is not None and client.connection is connection:
            self._broken(client)

    def _broken(self, client: _Client, taken_over: bool = False) -> None:
        if client.connection is not None:
            client.connection.alive = False
        client.connection, client.away_since = None, self.world.now
        will, client.will = client.will, None
        if will is None:
            return
        parcel = _Parcel(will.topic, will.payload, will.retain, will.qos)
        if not will.delay:
            self.route(parcel, "")
        elif not taken_over:
            gone = client.away_since

            def later() -> None:
                again = self.clients.get(client.name)
                if again is not client or (client.connection is None and client.away_since == gone):
                    self.route(parcel, "")

            self.world.after(will.delay, later)

    def goodbye(self, connection: Connection, name: str) -> None:
        """A graceful end: no will."""
        client = self.clients.get(name)
        if client is not None and client.connection is connection:
            client.will = None
            self._broken(client)

    def subscribe(self, connection: Connection, name: str, subscriptions: tuple[Subscription, ...]) -> None:
        client = self.clients.get(name)
        if client is None or client.connection is not connection:
            return
        self._routes.clear()
        for subscription in subscriptions:
            client.subscriptions[subscription.filter] = subscription
            for topic, parcel in self.retained.items():
                if matches(subscription.filter, topic):
                    self._send(client, _Parcel(topic, parcel.payload, True, parcel.qos))

    # Messages

    def route(self, parcel: _Parcel, sender: str) -> None:
        """A message has reached the broker."""
        if parcel.retain:
            self.retained.pop(parcel.topic, None)
            if parcel.payload:
                self.retained[parcel.topic] = parcel
        found = self._routes.get(parcel.topic)
        if found is None:
            found = self._routes[parcel.topic] = [
                (client, subscription)
                for client in self.clients.values()
                for subscription in client.subscriptions.values()
                if matches(subscription.filter, parcel.topic)
            ]
        out = _Parcel(parcel.topic, parcel.payload, False, parcel.qos)
        seen: set[str] = set()
        for client, subscription in found:
            if client.name not in seen and not (subscription.no_local and client.name == sender):
                seen.add(client.name)
                self._send(client, out)

    def _send(self, client: _Client, parcel: _Parcel) -> None:
        connection = client.connection
        if connection is None:
            if client.keep and parcel.qos:
                client.queue.append(parcel)
            return
        data = parcel.topic.startswith(DATA)
        random, weather = self.world.random, self.weather
        bad = self.world.now < weather.until
        if data:
            if bad and random.random() < weather.loss:
                return
            copies = 2 if bad and random.random() < weather.double else 1
            for _ in range(copies):
                self.world.after(self.delay(), lambda: self._arrive(client, connection, parcel))
            return
        window = [parcel]
        if bad and weather.double:
            recent = connection.recent.setdefault(parcel.topic, [])
            recent.append(parcel)
            del recent[:-3]
            if random.random() < weather.double:
                window += recent[-random.randint(1, 3) :]
        for item in window:
            when = self.ordered(connection, parcel.topic, False)
            self.world.at(when, lambda item=item: self._arrive(client, connection, item))  # type: ignore[misc]

    def _arrive(self, client: _Client, connection: Connection, parcel: _Parcel) -> None:
        if connection.alive:
            connection.transport.arrived(parcel.topic, parcel.payload, parcel.retain)
        elif client.keep and parcel.qos and client is self.clients[client.name]:
            if client.connection is None or client.connection is connection:
                client.queue.append(parcel)  # not confirmed: it comes again with the next connection
            else:
                self._send(client, parcel)

    def delay(self) -> float:
        """How long a message is under way, one hop."""
        random, weather = self.world.random, self.weather
        if self.world.now < weather.until and random.random() < weather.slow:
            return random.random() * weather.late
        return 0.0005 + 0.002 * random.random()

    def ordered(self, connection: Connection, topic: str, up: bool) -> float:
        """When a control message arrives that may not overtake others of its topic."""
        when = max(self.world.now + self.delay(), connection.last.get((topic, up), 0.0) + 1e-6)
        connection.last[topic, up] = when
        return when


class SimTransport:
    """A client's side of its connections: what ``paho_link`` and ``bulk`` are in the product."""

    max_packet = 1 << 20

    def __init__(self, broker: SimBroker, client_id: str, keep: float = 0.0, clean: bool = True) -> None:
        self._broker, self.client_id = broker, client_id
        self._keep, self._clean = keep, clean
        self.connection: Connection | None = None
        self.dead = False
        """the process is gone: nothing leaves it any more"""
        self.on_wake: Callable[[], None] = lambda: None
        self._handler: Handler | None = None
        self._incoming: deque[tuple[str, bytes, bool]] = deque()
        self._unconfirmed: list[Publication] = []
        self._lost = False

    @property
    def connected(self) -> bool:
        return self.connection is not None

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        name = f"{self._broker.world.random.getrandbits(64):016x}"
        self._handler, self._lost = handler, False
        self._incoming.clear()
        present = self._broker.attach(self, will(name) if will is not None else None, self._keep, self._clean)
        handler.on_event(Connected(name, present))
        again, self._unconfirmed = self._unconfirmed, []
        for publication in again:
            self.publish(publication)

    def cut(self, notice: float) -> None:
        """The connection breaks; the broker notices after a while."""
        connection = self.connection
        if connection is None:
            return
        connection.alive = False
        self._lost = True
        self._broker.world.after(notice, lambda: self._broker.noticed(connection, self.client_id))
        self.on_wake()

    def arrived(self, topic: str, payload: bytes, retain: bool) -> None:
        if not self.dead:
            self._incoming.append((topic, payload, retain))
            self.on_wake()

    def poll(self, timeout: float) -> None:
        handler = self._handler
        assert handler is not None
        if self._lost:
            self._lost, self.connection = False, None
            handler.on_event(Disconnected("the connection was cut (simulated)"))
        while self._incoming and self.connection is not None:
            topic, payload, retain = self._incoming.popleft()
            handler.on_message(topic, memoryview(payload), retain)

    @property
    def pending(self) -> bool:
        return bool(self._incoming) and self.connection is not None

    def publish(self, publication: Publication) -> None:
        connection, broker = self.connection, self._broker
        if self.dead:
            return
        durable = publication.durable and publication.qos > 0
        if durable:
            self._unconfirmed.append(publication)
        if connection is None or not connection.alive:
            return
        parcel = _Parcel(publication.topic, b"".join(publication.parts), publication.retain, publication.qos)
        data = parcel.topic.startswith(DATA)
        when = broker.world.now + broker.delay() if data else broker.ordered(connection, parcel.topic, True)

        def reach() -> None:
            if not connection.alive:
                return
            broker.route(parcel, self.client_id)
            if durable:
                broker.world.after(broker.delay(), confirm)

        def confirm() -> None:
            if connection.alive:
                self._unconfirmed = [p for p in self._unconfirmed if p is not publication]

        broker.world.at(when, reach)

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        connection = self.connection
        if connection is not None and connection.alive:
            self._broker.subscribe(connection, self.client_id, subscriptions)

    def room(self) -> bool:
        return self.connection is not None

    def subscribed(self) -> bool:
        return self.connection is not None

    def idle(self) -> bool:
        return not self._unconfirmed

    def wake(self) -> None:
        self.on_wake()

    def die(self, notice: float) -> None:
        """The process is gone, or the whole device: then the broker notices late."""
        self.cut(notice)
        self.dead = True

    def close(self, graceful: bool) -> None:
        if self.dead or self.connection is None:
            return
        connection = self.connection
        self.connection = None
        if graceful:
            # A goodbye follows what was published before it.
            self._broker.world.after(0.1, lambda: self._broker.goodbye(connection, self.client_id))
        else:
            connection.alive = False
            self._broker.world.after(0.002, lambda: self._broker.noticed(connection, self.client_id))
