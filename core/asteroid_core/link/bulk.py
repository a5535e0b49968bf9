"""Transport for tensors: MQTT 5 over one socket without copies of the payload on the way out.

``sendmsg`` takes the packet's head and the tensor's own memory; the receive buffer is read in place. Messages leave in
the order they were queued, whatever their QoS, because the tensor plane's questions must not overtake its chunks. The
broker's Receive Maximum and Maximum Packet Size are honoured. Unconfirmed durable messages are sent again after a
reconnect; chunks are not, since the tensor link knows better what is missing.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from uuid import uuid4

from asteroid_core.errors import WireError
from asteroid_core.link import mqtt5
from asteroid_core.link.base import (
    MAX_PACKET,
    Broker,
    Connected,
    Disconnected,
    Handler,
    Publication,
    Refused,
    Subscription,
    WillFactory,
)
from asteroid_core.link.reasons import connect_failed, connect_refused, disconnected, publish_refused, too_large
from asteroid_core.link.wake import Waker

MAX_INFLIGHT = 64
SOCKET_BUFFER = 4 << 20
RECEIVE_BUFFER = 2 * MAX_PACKET
OUT_BYTES = 1 << 20
"""Chunks wait in their tensors, not here: beyond this many queued bytes there is no room for another."""
MAX_PIECES = 64
QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""A broker without TCP_NODELAY waits for our delayed TCP acknowledgement (40 ms) before it sends a small message, and
credits are small; Linux sends the acknowledgement at once if asked after each read."""
MOST_AT_ONCE = 64 << 10
"""Within a message the thread is woken for so many bytes, or for the rest of it. On a slow link it would else be woken
for each packet of the wire, which costs a small device more than everything that it then does with the bytes."""
PROBABLE_LIMIT = 256 << 20
"""MQTT's own limit of a packet, where the broker names none."""


class BulkTransport:
    """See the module's header.

    Args:
        broker: where to connect.
        client_id: MQTT client id, the same at each reconnect.
    """

    def __init__(self, broker: Broker, client_id: str) -> None:
        self._broker = broker
        self._client_id = client_id
        self._socket: socket.socket | None = None
        self._handler: Handler | None = None
        self._waker = Waker()
        self._connection = ""
        self._max_packet = 0
        self._max_inflight = MAX_INFLIGHT
        self._keepalive = float(broker.keepalive)
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER))
        self._start = self._end = 0
        self._lacks = 0
        """Bytes that the message that has begun to arrive still lacks."""
        self._low_water = 1
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._pending: deque[Publication] = deque()
        self._inflight: dict[int, Publication] = {}
        self._subscribing: dict[int, tuple[Subscription, ...]] = {}
        self._packet_id = 0
        self._heard = self._spoke = 0.0
        self._pinged = False

    @property
    def max_packet(self) -> int:
        """Largest packet that the broker takes."""
        return self._max_packet

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._socket is not None

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        """Connect and wait for the CONNACK."""
        broker = self._broker
        self._handler = handler
        self._connection = uuid4().hex
        packet = mqtt5.connect(self._client_id, broker, will and will(self._connection), MAX_PACKET)
        try:
            sock = self._open(broker)
            try:
                sock.sendall(packet)
                session, code, properties = self._await_connack(sock)
            except BaseException:
                sock.close()
                raise
        except (OSError, EOFError, WireError) as error:
            raise connect_failed(broker, error) from error
        if code:
            sock.close()
            raise connect_refused(broker, code)
        self._max_packet = int(properties.get(mqtt5.MAXIMUM_PACKET, PROBABLE_LIMIT))
        self._max_inflight = min(int(properties.get(mqtt5.RECEIVE_MAXIMUM, 65535)), MAX_INFLIGHT)
        self._keepalive = float(properties.get(mqtt5.SERVER_KEEPALIVE, broker.keepalive))
        sock.setblocking(False)
        self._socket = sock
        self._low_water = 1
        self._heard = self._spoke = time.monotonic()
        self._pinged = False
        self._resume()
        handler.on_event(Connected(self._connection, session))
        self._parse()  # what came together with the CONNACK

    def _open(self, broker: Broker) -> socket.socket:
        sock = socket.create_connection((broker.host, broker.port), timeout=broker.connect_timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
            if broker.secure:
                context = ssl.create_default_context(cafile=broker.ca_file)
                return context.wrap_socket(sock, server_hostname=broker.host)
        except BaseException:
            sock.close()
            raise
        return sock

    def _await_connack(self, sock: socket.socket) -> tuple[bool, int, Mapping[int, mqtt5.PropertyValue]]:
        self._start = self._end = 0
        while (packet := self._next_packet()) is None:
            got = sock.recv_into(self._buffer[self._end :])
            if not got:
                raise EOFError
            self._end += got
        first, body = packet
        if first & 0xF0 != mqtt5.CONNACK:
            raise WireError("The broker's first packet is not an answer to ours.")
        return mqtt5.read_connack(body)

    def _resume(self) -> None:
        """What a former connection left: durable messages go out again, in order, chunks are forgotten."""
        again = [p for p in (*self._inflight.values(), *self._pending) if p.durable]
        self._out.clear()
        self._out_bytes = 0
        self._inflight.clear()
        self._subscribing.clear()
        self._pending = deque(again)
        self._advance()

    def poll(self, timeout: float) -> None:
        """Move bytes."""
        sock = self._socket
        if sock is None:
            self._waker.wait(timeout)
            return
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            timeout = 0.0
        timeout = max(0.0, min(timeout, self._keepalive / 4 if self._keepalive else timeout))
        readers: list[socket.socket | Waker] = [sock, self._waker]
        writers: list[socket.socket] = [sock] if self._out else []
        readable = select.select(readers, writers, [], timeout)[0]
        if self._waker in readable:
            self._waker.drain()
        try:
            if sock in readable or isinstance(sock, ssl.SSLSocket):
                self._receive(sock)
            if self._socket is not None and self._out:
                self._send(sock)
            self._keep_alive()
        except (OSError, EOFError, WireError) as error:
            self._lose(disconnected(self._broker, None, error))

    def _lose(self, reason: str) -> None:
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        if self._handler is not None:
            self._handler.on_event(Disconnected(reason))

    def _keep_alive(self) -> None:
        if not self._keepalive or self._socket is None:
            return
        now = time.monotonic()
        if now - self._heard > 1.5 * self._keepalive:
            raise TimeoutError("it did not answer within one and a half keep-alives")
        if not self._pinged and now - min(self._spoke, self._heard) > self._keepalive / 2:
            self._pinged = True
            self._queue(mqtt5.PINGREQ_PACKET)

    def _receive(self, sock: socket.socket) -> None:
        """Read once (a TLS socket until it would block, since its own buffer does not show in ``select``)."""
        while self._socket is not None:
            try:
                got = sock.recv_into(self._buffer[self._end :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not got:
                raise EOFError("it closed the connection")
            self._heard = time.monotonic()
            if QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
            self._pinged = False
            self._end += got
            self._parse()
            self._wait_for_more(sock)
            if not isinstance(sock, ssl.SSLSocket) or not sock.pending():
                return

    def _wait_for_more(self, sock: socket.socket) -> None:
        """Say how many bytes are worth waking for; a TLS record is a unit of its own."""
        wanted = max(1, min(self._lacks, MOST_AT_ONCE))
        if wanted != self._low_water and self._socket is not None and not isinstance(sock, ssl.SSLSocket):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._low_water = wanted

    def _parse(self) -> None:
        while self._socket is not None and (packet := self._next_packet()) is not None:
            self._handle(*packet)

    def _next_packet(self) -> tuple[int, memoryview] | None:
        """Take a whole packet from the buffer, or make room for the rest of it."""
        start, end = self._start, self._end
        need = 2
        self._lacks = 0
        if end - start >= 2:
            found = mqtt5.read_varint(self._buffer[:end], start + 1)
            if found is not None:
                length, at = found
                if at + length <= end:
                    self._start = at + length
                    return self._buffer[start], self._buffer[at : at + length]
                need = at + length - start
                self._lacks = need - (end - start)
                if need > MAX_PACKET:
                    raise WireError("the broker sent a packet that is larger than we asked for")
        if start == end:
            self._start = self._end = 0
        elif start + need > len(self._buffer) or len(self._buffer) - end < 4096:
            self._buffer[: end - start] = self._buffer[start:end]
            self._start, self._end = 0, end - start
        return None

    def _handle(self, first: int, body: memoryview) -> None:
        kind = first & 0xF0
        handler = self._handler
        if handler is None:
            return
        if kind == mqtt5.PUBLISH:
            message = mqtt5.read_publish(first, body)
            if message.qos:
                self._queue(mqtt5.puback(message.packet_id))
            response, correlation = None, None
            if message.properties:
                topic = message.properties.get(mqtt5.RESPONSE_TOPIC)
                response = topic.decode() if isinstance(topic, bytes) else None
                data = message.properties.get(mqtt5.CORRELATION)
                correlation = data if isinstance(data, bytes) else None
            handler.on_message(message.topic, message.payload, message.retain, response, correlation)
        elif kind == mqtt5.PUBACK:
            number, code = mqtt5.read_ack(body)
            publication = self._inflight.pop(number, None)
            if publication is not None and code >= 0x80:
                handler.on_event(Refused(publication.topic, publish_refused(publication.topic, code)))
            self._advance()
        elif kind == mqtt5.SUBACK:
            number, codes = mqtt5.read_suback(body)
            for subscription, code in zip(self._subscribing.pop(number, ()), codes, strict=False):
                if code >= 0x80:
                    reason = publish_refused(subscription.filter, code)
                    handler.on_event(Refused(subscription.filter, reason))
        elif kind == mqtt5.DISCONNECT:
            self._lose(disconnected(self._broker, body[0] if len(body) else 0))
        elif kind != mqtt5.PINGRESP:
            raise WireError(f"the broker sent a packet of type 0x{first:02X}, which a client never gets")

    def publish(self, publication: Publication) -> None:
        """Queue a message; one that the broker would not take is refused here, as the broker would only hang up."""
        size = publication.nbytes + len(publication.topic) + 64
        if self._max_packet and size > self._max_packet and self._handler is not None:
            reason = too_large(self._broker, publication.topic, size, self._max_packet)
            self._handler.on_event(Refused(publication.topic, reason))
        elif self._socket is not None or publication.durable:
            self._pending.append(publication)
            self._advance()

    def _advance(self) -> None:
        """Put queued messages on the wire as far as the broker's Receive Maximum lets us."""
        while self._pending and self._socket is not None:
            if self._pending[0].qos and len(self._inflight) >= self._max_inflight:
                return
            publication = self._pending.popleft()
            number = 0
            if publication.qos:
                number = self._next_id()
                self._inflight[number] = publication
            self._queue(mqtt5.publish_head(publication, number), *publication.parts)

    def _next_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65535 + 1
            if self._packet_id not in self._inflight and self._packet_id not in self._subscribing:
                return self._packet_id

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Subscribe in one packet; without a connection the owner does it again when there is one."""
        if self._socket is not None:
            number = self._next_id()
            self._subscribing[number] = subscriptions
            self._queue(mqtt5.subscribe(number, subscriptions))

    def _queue(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            if len(part):
                self._out.append(memoryview(part))
                self._out_bytes += len(part)

    def _send(self, sock: socket.socket) -> None:
        """Send until the socket is full."""
        try:
            while self._out:
                if isinstance(sock, ssl.SSLSocket):
                    sent = sock.send(self._out[0])
                else:
                    sent = sock.sendmsg([self._out[i] for i in range(min(len(self._out), MAX_PIECES))])
                self._spoke = time.monotonic()
                self._out_bytes -= sent
                while sent:
                    piece = self._out[0]
                    if sent < len(piece):
                        self._out[0] = piece[sent:]
                        break
                    sent -= len(piece)
                    self._out.popleft()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return

    def room(self) -> bool:
        """Whether the next chunk could leave at once."""
        return (
            self._socket is not None
            and not self._pending
            and self._out_bytes < OUT_BYTES
            and len(self._inflight) < self._max_inflight
        )

    def subscribed(self) -> bool:
        """Whether every subscription is in force."""
        return self._socket is not None and not self._subscribing

    def idle(self) -> bool:
        """Whether nothing waits."""
        return not (self._pending or self._out or self._inflight or self._subscribing)

    def wake(self) -> None:
        """End a ``poll`` from another thread."""
        self._waker.wake()

    def close(self, graceful: bool) -> None:
        """Disconnect, or just drop the socket."""
        if self._socket is not None and graceful:
            self._queue(mqtt5.DISCONNECT_PACKET)
            deadline = time.monotonic() + 1.0
            while self._socket is not None and self._out and time.monotonic() < deadline:
                self.poll(0.05)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._waker.close()
