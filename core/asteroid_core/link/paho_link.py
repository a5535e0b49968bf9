"""Transport over paho-mqtt (MQTT 5): the control plane, and the tensor plane when asked for. The only user of paho.

The owner's thread drives paho's socket itself (``loop_read``, ``loop_write``, ``loop_misc`` around one ``select``), so
there is no second thread and no lock. paho 2.2 acts neither on Receive Maximum nor on Maximum Packet Size of the
CONNACK and never sets TCP_NODELAY (a QoS 1 round trip then takes 88 ms instead of 0.2), so this module does.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from typing import Any
from uuid import uuid4

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

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
Properties: Any = PahoProperties
"""paho's class has no types."""
SOCKET_BUFFER = 4 << 20


class PahoTransport:
    """See the module's header.

    Args:
        broker: where to connect.
        client_id: MQTT client id, the same at each reconnect.
    """

    def __init__(self, broker: Broker, client_id: str) -> None:
        self._broker = broker
        self._max_packet = 0
        self._connack: ReasonCode | None = None
        self._lost: str | None = None
        self._handler: Handler | None = None
        self._will: WillFactory | None = None
        self._connection = ""
        self._topics: dict[int, str] = {}
        """What the broker has not confirmed yet."""
        self._subscribing: dict[int, tuple[Subscription, ...]] = {}
        self._pending: deque[Publication] = deque()
        self._max_inflight = MAX_INFLIGHT
        self._waker = Waker()
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        client.max_queued_messages_set(0)
        client.max_inflight_messages_set(65535)  # paho takes a limit only before it knows the broker's; see _advance
        client.connect_timeout = broker.connect_timeout
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        client.on_pre_connect = self._on_pre_connect
        client.on_socket_open = self._on_socket_open
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe

    @property
    def max_packet(self) -> int:
        """Largest packet that the broker takes."""
        return self._max_packet

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._client.is_connected()

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        """Connect and wait for the CONNACK."""
        self._handler, self._will = handler, will
        self._connack = self._lost = None
        self._subscribing.clear()
        broker = self._broker
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = broker.session_expiry
        properties.MaximumPacketSize = MAX_PACKET
        try:
            if broker.secure and self._client._ssl_context is None:
                self._client.tls_set_context(ssl.create_default_context(cafile=broker.ca_file))
            self._client.connect(
                broker.host, broker.port, broker.keepalive, clean_start=broker.clean_start, properties=properties
            )
        except OSError as error:
            raise connect_failed(broker, error) from error
        deadline = time.monotonic() + broker.connect_timeout
        while self._connack is None and self._lost is None and self._client.socket() is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._client.disconnect()
                raise connect_failed(broker, TimeoutError())
            self._step(left)
        if self._connack is None:
            raise connect_failed(broker, ConnectionResetError())
        if self._connack.is_failure:
            raise connect_refused(broker, self._connack.value)

    def poll(self, timeout: float) -> None:
        """Move bytes."""
        self._step(timeout)

    def _step(self, timeout: float) -> None:
        client = self._client
        sock: Any = client.socket()
        if sock is None:
            self._waker.wait(timeout)
            return
        pending = getattr(sock, "pending", None)
        if pending is not None and pending() > 0:
            timeout = 0.0
        writers = [sock] if client.want_write() else []
        try:
            readable, writable, _ = select.select([sock, self._waker], writers, [], max(timeout, 0.0))
        except ValueError:  # paho closed the socket between the two lines above
            return
        self._waker.drain()
        if writable:
            client.loop_write()
        if sock in readable or (pending is not None and pending() > 0):
            client.loop_read()
        client.loop_misc()
        self._advance()

    def publish(self, publication: Publication) -> None:
        """Queue a message; one that the broker would not take is refused here, as the broker would only hang up."""
        handler = self._handler
        size = publication.nbytes + len(publication.topic) + 64
        if self._max_packet and size > self._max_packet and handler is not None:
            reason = too_large(self._broker, publication.topic, size, self._max_packet)
            handler.on_event(Refused(publication.topic, reason))
            return
        if self.connected or publication.durable:
            self._pending.append(publication)
            self._advance()

    def _advance(self) -> None:
        """Hand queued messages to paho as far as the broker's Receive Maximum lets us."""
        while self._pending and self.connected:
            if self._pending[0].qos and len(self._topics) >= self._max_inflight:
                return
            self._hand_over(self._pending.popleft())

    def _hand_over(self, publication: Publication) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if publication.response_topic is not None:
            properties.ResponseTopic = publication.response_topic
        if publication.correlation is not None:
            properties.CorrelationData = publication.correlation
        if publication.expiry is not None:
            properties.MessageExpiryInterval = publication.expiry
        parts = publication.parts
        payload = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        info = self._client.publish(
            publication.topic,
            payload,
            publication.qos,
            publication.retain,
            None if properties.isEmpty() else properties,
        )
        if publication.qos and info.rc in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
            self._topics[info.mid] = publication.topic

    def subscribe(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Subscribe in one packet."""
        wanted = [(s.filter, SubscribeOptions(qos=s.qos, noLocal=s.no_local)) for s in subscriptions]
        _, mid = self._client.subscribe(wanted)
        if mid is not None:
            self._subscribing[mid] = subscriptions

    def room(self) -> bool:
        """One large message at a time waits in paho, which copies the rest of a packet at each partial send."""
        free = not self._pending and len(self._topics) < self._max_inflight
        return free and self.connected and not self._client.want_write()

    def subscribed(self) -> bool:
        """Whether every subscription is in force."""
        return self.connected and not self._subscribing

    def idle(self) -> bool:
        """Whether nothing waits."""
        return not self._client.want_write() and not (self._topics or self._pending or self._subscribing)

    def wake(self) -> None:
        """End a ``poll`` from another thread."""
        self._waker.wake()

    def close(self, graceful: bool) -> None:
        """Disconnect, or just drop the socket."""
        sock: Any = self._client.socket()
        if graceful and sock is not None:
            self._client.disconnect()
            deadline = time.monotonic() + 1.0
            while self._client.socket() is not None and time.monotonic() < deadline:
                self._step(0.05)
        elif sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
            self._step(0.05)
        self._waker.close()

    # paho's callbacks: they only note what happened.

    def _on_pre_connect(self, client: mqtt.Client, userdata: Any) -> None:
        self._connection = uuid4().hex
        if self._will is None:
            client.will_clear()
            return
        will = self._will(self._connection)
        properties = Properties(PacketTypes.WILLMESSAGE)
        properties.WillDelayInterval = will.delay
        client.will_set(will.topic, will.payload, will.qos, will.retain, properties)

    def _on_socket_open(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)

    def _on_connect(self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any) -> None:
        self._connack = code
        if code.is_failure or self._handler is None:
            return
        inflight = int(getattr(properties, "ReceiveMaximum", MAX_INFLIGHT))
        self._max_inflight = min(inflight, MAX_INFLIGHT)
        self._max_packet = int(getattr(properties, "MaximumPacketSize", 256 << 20))
        self._handler.on_event(Connected(self._connection, bool(flags.session_present)))

    def _on_disconnect(self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any) -> None:
        value = code.value if flags.is_disconnect_packet_from_server else None
        self._lost = disconnected(self._broker, value)
        if self._connack is not None and not self._connack.is_failure and self._handler is not None:
            self._handler.on_event(Disconnected(self._lost))

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        if self._handler is not None:
            response = getattr(message.properties, "ResponseTopic", None)
            correlation = getattr(message.properties, "CorrelationData", None)
            self._handler.on_message(message.topic, memoryview(message.payload), message.retain, response, correlation)

    def _on_publish(self, client: mqtt.Client, userdata: Any, mid: int, code: ReasonCode, properties: Any) -> None:
        topic = self._topics.pop(mid, "")
        if code.is_failure and self._handler is not None:
            self._handler.on_event(Refused(topic, publish_refused(topic, code.value)))

    def _on_subscribe(
        self, client: mqtt.Client, userdata: Any, mid: int, codes: list[ReasonCode], properties: Any
    ) -> None:
        for subscription, code in zip(self._subscribing.pop(mid, ()), codes, strict=False):
            if code.is_failure and self._handler is not None:
                self._handler.on_event(Refused(subscription.filter, publish_refused(subscription.filter, code.value)))
