"""What the links are made of: settings, events, and the transport that a link drives.

A *transport* moves MQTT messages and is owned by one thread: ``paho_link`` (paho-mqtt), ``bulk`` (zero-copy) and
``memory`` (in-process). A *link* is that thread: ``control`` for JSON, ``tensors`` for the tensor plane. Owners talk to
a link through queues only; nothing is ever published, waited for or locked inside a library's callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asteroid_core.errors import BrokerError

MIN_PACKET = 20 * 1024
"""A broker that takes less than this in one message is refused: the tensor plane would crawl."""
PACKET_RESERVE = 4 * 1024
"""Room for the topic and the headers beside a chunk in one MQTT packet."""
CHUNK_BYTES = 256 * 1024
"""Default chunk: see bench/link.py for 256 KiB, 512 KiB and 1 MiB."""
SUPERVISOR_KEEPALIVE_S = 5
"""The broker notices a frozen process or a pulled cable after about one and a half of these."""
SUPERVISOR_WILL_DELAY_S = 3
"""A reconnection within this time cancels the will."""
WORKER_KEEPALIVE_S = 60
"""A busy receiver must not be cut off; a worker that hangs is found by its heartbeat long before."""
MAX_PACKET = (1 << 20) + 64 * 1024
"""Largest packet we ask a broker to send us: one chunk of 1 MiB and room."""


@dataclass(frozen=True)
class Broker:
    """How to reach the broker.

    Attributes:
        host: name or address.
        port: TCP port.
        username: None for an anonymous login.
        password: its password.
        ca_file: PEM file with the authority that signed the broker's certificate; turns TLS on.
        tls: TLS with the system's authorities.
        keepalive: seconds; a broker notices a vanished client after about one and a half of them.
        clean_start: False keeps the session (subscriptions, queued messages) for ``session_expiry`` seconds.
        session_expiry: seconds that the broker keeps the session after the connection is gone.
        connect_timeout: seconds to wait for the broker to answer.
    """

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    tls: bool = False
    keepalive: int = 60
    clean_start: bool = True
    session_expiry: int = 0
    connect_timeout: float = 5.0

    @property
    def address(self) -> str:
        """Host and port for sentences."""
        return f"{self.host}:{self.port}"

    @property
    def secure(self) -> bool:
        """Whether TLS is used."""
        return self.tls or self.ca_file is not None


@dataclass(frozen=True)
class Publication:
    """One message to publish.

    Attributes:
        topic: its topic.
        parts: payload in pieces, sent without being joined where the transport can.
        qos: 0 or 1.
        retain: whether the broker keeps it.
        durable: whether it is sent again after a reconnect; tensor chunks are not, their link does that itself.
        response_topic: where an answer is expected.
        correlation: what an answer must carry.
        expiry: seconds after which the broker drops it.
    """

    topic: str
    parts: tuple[bytes | memoryview, ...]
    qos: int = 1
    retain: bool = False
    durable: bool = True
    response_topic: str | None = None
    correlation: bytes | None = None
    expiry: int | None = None

    @property
    def nbytes(self) -> int:
        """Length of the payload."""
        return sum(len(part) for part in self.parts)


@dataclass(frozen=True)
class Will:
    """What the broker publishes when the connection is lost.

    Attributes:
        topic: its topic.
        payload: made anew for each connection.
        qos: 0 or 1.
        retain: whether the broker keeps it.
        delay: seconds the broker waits for a reconnection first (needs ``session_expiry`` at least as long).
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True
    delay: int = 0


WillFactory = Callable[[str], Will]
"""Makes the will of a connection from the connection's random id."""


@dataclass(frozen=True)
class Subscription:
    """A filter to subscribe to; ``no_local`` leaves out what we publish ourselves."""

    filter: str
    qos: int = 1
    no_local: bool = False


@dataclass(frozen=True)
class Connected:
    """The broker accepted us.

    Attributes:
        connection: random id of this connection, the one that its will was made with.
        session: whether the broker kept our session; if not, retained messages have been published again.
    """

    connection: str
    session: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection is gone; the link tries again by itself. ``reason`` is a sentence."""

    reason: str


@dataclass(frozen=True)
class Message:
    """A message came in."""

    topic: str
    payload: bytes
    retain: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None


@dataclass(frozen=True)
class Refused:
    """The broker refused one of our messages or subscriptions, for example because its access rules forbid it."""

    topic: str
    reason: str


Event = Connected | Disconnected | Message | Refused


class Handler(Protocol):
    """What a transport tells its owner, always from inside ``connect`` or ``poll``."""

    def on_event(self, event: Connected | Disconnected | Refused) -> None:
        """Something happened to the connection."""

    def on_message(
        self,
        topic: str,
        payload: memoryview,
        retain: bool,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> None:
        """A message came in; ``payload`` is valid only during the call."""


class Transport(Protocol):
    """Moves MQTT messages; everything but ``wake`` is called by one thread only."""

    @property
    def max_packet(self) -> int:
        """Largest packet that the broker takes, known after ``connect``."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        """Connect (again) and wait for the broker's answer.

        Raises:
            BrokerError: says what is wrong and what to do.
        """

    def poll(self, timeout: float) -> None:
        """Move bytes for at most ``timeout`` seconds, less if anything happened."""

    def publish(self, publication: Publication) -> None:
        """Queue a message."""

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Subscribe; a refusal comes as an event."""

    def room(self) -> bool:
        """Whether another large message should be queued now."""

    def subscribed(self) -> bool:
        """Whether the broker has answered every ``subscribe`` of this connection."""

    def idle(self) -> bool:
        """Whether everything queued has left and, at QoS 1, has been confirmed by the broker."""

    def wake(self) -> None:
        """End a ``poll`` from another thread."""

    def close(self, graceful: bool) -> None:
        """Disconnect; a graceful end keeps the broker from publishing the will."""


def chunk_limit(wanted: int, max_packet: int, broker: Broker) -> int:
    """Return the length of a chunk that the broker takes.

    Raises:
        BrokerError: the broker's limit is too small for tensors.
    """
    if max_packet < MIN_PACKET:
        raise BrokerError(
            f"The broker at {broker.address} takes messages of at most {max_packet} bytes, "
            f"tensors need {MIN_PACKET} or more.",
            "Raise its limit (mosquitto: max_packet_size; EMQX: mqtt.max_packet_size; rumqttd: max_payload_size).",
        )
    return min(wanted, max_packet - PACKET_RESERVE)
