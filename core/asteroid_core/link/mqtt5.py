"""As much of MQTT 5 as the tensor plane needs: packets to bytes and back. Sans-IO.

Source: OASIS MQTT 5.0, sections named at each function. Only what a client at QoS 0 and 1 sends and receives.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from asteroid_core.errors import WireError
from asteroid_core.link.base import Broker, Publication, Subscription, Will

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xD0, 0xE0
PINGREQ_PACKET = b"\xc0\x00"
DISCONNECT_PACKET = b"\xe0\x00"

# Section 2.2.2.2: identifier -> type of the value.
_BYTE, _SHORT, _INT, _VARINT, _BINARY, _STRING, _PAIR = range(7)
_PROPERTY_TYPES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), _BYTE),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), _SHORT),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), _INT),
    0x0B: _VARINT,
    **dict.fromkeys((0x09, 0x16), _BINARY),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), _STRING),
    0x26: _PAIR,
}
SESSION_EXPIRY, WILL_DELAY, RECEIVE_MAXIMUM, MAXIMUM_PACKET = 0x11, 0x18, 0x21, 0x27
RESPONSE_TOPIC, CORRELATION, MESSAGE_EXPIRY, SERVER_KEEPALIVE, MAXIMUM_QOS = 0x08, 0x09, 0x02, 0x13, 0x24

PropertyValue = int | bytes


def varint(value: int) -> bytes:
    """Variable byte integer (1.5.5)."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def read_varint(data: memoryview, at: int) -> tuple[int, int] | None:
    """Return (value, next position), or None if more bytes are needed.

    Raises:
        WireError: longer than four bytes.
    """
    value = shift = 0
    for i in range(4):
        if at + i >= len(data):
            return None
        byte = data[at + i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + i + 1
        shift += 7
    raise WireError("The broker sent a packet with a malformed length.")


def _text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(raw)) + raw


def _properties(*items: bytes) -> bytes:
    body = b"".join(items)
    return varint(len(body)) + body


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


def connect(client_id: str, broker: Broker, will: Will | None, max_packet: int) -> bytes:
    """CONNECT (3.1)."""
    flags = 0x02 if broker.clean_start else 0
    properties = _properties(
        struct.pack(">BI", SESSION_EXPIRY, broker.session_expiry), struct.pack(">BI", MAXIMUM_PACKET, max_packet)
    )
    payload = _text(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += _properties(struct.pack(">BI", WILL_DELAY, will.delay)) + _text(will.topic) + _text(will.payload)
    if broker.username is not None:
        flags |= 0x80
        payload += _text(broker.username)
        if broker.password is not None:
            flags |= 0x40
            payload += _text(broker.password)
    head = _text("MQTT") + struct.pack(">BBH", 5, flags, broker.keepalive)
    return _packet(0x10, head + properties + payload)


def publish_head(publication: Publication, packet_id: int, again: bool = False) -> bytes:
    """All of a PUBLISH (3.3) but its payload, which the caller sends from where it lies."""
    first = PUBLISH | (0x08 if again else 0) | publication.qos << 1 | publication.retain
    items: list[bytes] = []
    if publication.response_topic is not None:
        items.append(bytes((RESPONSE_TOPIC,)) + _text(publication.response_topic))
    if publication.correlation is not None:
        items.append(bytes((CORRELATION,)) + _text(publication.correlation))
    if publication.expiry is not None:
        items.append(struct.pack(">BI", MESSAGE_EXPIRY, publication.expiry))
    number = struct.pack(">H", packet_id) if publication.qos else b""
    variable = _text(publication.topic) + number + _properties(*items)
    return bytes((first,)) + varint(len(variable) + publication.nbytes) + variable


def puback(packet_id: int) -> bytes:
    """PUBACK with success (3.4)."""
    return b"\x40\x02" + struct.pack(">H", packet_id)


def subscribe(packet_id: int, subscriptions: tuple[Subscription, ...]) -> bytes:
    """SUBSCRIBE (3.8)."""
    items = b"".join(_text(s.filter) + bytes((s.qos | (0x04 if s.no_local else 0),)) for s in subscriptions)
    return _packet(0x82, struct.pack(">H", packet_id) + _properties() + items)


def read_properties(data: memoryview, at: int) -> tuple[Mapping[int, PropertyValue], int]:
    """Return the properties at ``at`` and the position after them; user properties are skipped.

    Raises:
        WireError: malformed.
    """
    found = read_varint(data, at)
    if found is None:
        raise WireError("The broker sent a packet that ends before its properties.")
    length, at = found
    end = at + length
    if end > len(data):
        raise WireError("The broker sent a packet that is shorter than its properties.")
    out: dict[int, PropertyValue] = {}
    while at < end:
        identifier = data[at]
        value, at = _value(data, at + 1, _PROPERTY_TYPES.get(identifier, -1))
        if value is not None:
            out[identifier] = value
    if at != end:
        raise WireError("The broker sent properties that overrun their length.")
    return out, end


def _value(data: memoryview, at: int, type_: int) -> tuple[PropertyValue | None, int]:
    try:
        if type_ == _BYTE:
            return data[at], at + 1
        if type_ == _SHORT:
            return struct.unpack_from(">H", data, at)[0], at + 2
        if type_ == _INT:
            return struct.unpack_from(">I", data, at)[0], at + 4
        if type_ == _VARINT:
            found = read_varint(data, at)
            if found is None:
                raise WireError("The broker sent a property that is cut short.")
            return found
        if type_ in (_BINARY, _STRING):
            return _bytes(data, at)
        if type_ == _PAIR:
            _, at = _bytes(data, at)
            return None, _bytes(data, at)[1]
    except (struct.error, IndexError) as error:
        raise WireError("The broker sent a property that is cut short.") from error
    raise WireError("The broker sent a property that MQTT 5 does not have.")


def _bytes(data: memoryview, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">H", data, at)
    if at + 2 + length > len(data):
        raise WireError("The broker sent a text that is cut short.")
    return bytes(data[at + 2 : at + 2 + length]), at + 2 + length


@dataclass(frozen=True)
class Incoming:
    """A PUBLISH that came in; the payload is a view of the receive buffer."""

    topic: str
    payload: memoryview
    qos: int
    packet_id: int
    retain: bool
    properties: Mapping[int, PropertyValue] = field(default_factory=dict)


def read_publish(first: int, body: memoryview) -> Incoming:
    """Read a PUBLISH (3.3).

    Raises:
        WireError: malformed.
    """
    try:
        qos = first >> 1 & 3
        if qos > 1:
            raise WireError("The broker sent a message at QoS 2, which was never asked for.")
        topic, at = _bytes(body, 0)
        packet_id = 0
        if qos:
            (packet_id,) = struct.unpack_from(">H", body, at)
            at += 2
        properties: Mapping[int, PropertyValue] = {}
        if at < len(body) and body[at] == 0:
            at += 1  # the usual case: no properties
        else:
            properties, at = read_properties(body, at)
        return Incoming(topic.decode(), body[at:], qos, packet_id, bool(first & 1), properties)
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError("The broker sent a message that is cut short or whose topic is not text.") from error


def read_ack(body: memoryview) -> tuple[int, int]:
    """Return (packet id, reason code) of a PUBACK (3.4)."""
    if len(body) < 2:
        raise WireError("The broker sent an acknowledgement that is cut short.")
    return body[0] << 8 | body[1], body[2] if len(body) > 2 else 0


def read_suback(body: memoryview) -> tuple[int, list[int]]:
    """Return (packet id, reason codes) of a SUBACK (3.9)."""
    if len(body) < 3:
        raise WireError("The broker sent an answer to a subscription that is cut short.")
    _, at = read_properties(body, 2)
    return body[0] << 8 | body[1], list(body[at:])


def read_connack(body: memoryview) -> tuple[bool, int, Mapping[int, PropertyValue]]:
    """Return (session present, reason code, properties) of a CONNACK (3.2)."""
    if len(body) < 2:
        raise WireError("The broker sent an answer to the connect packet that is cut short.")
    properties: Mapping[int, PropertyValue] = {}
    if len(body) > 2:
        properties, _ = read_properties(body, 2)
    return bool(body[0] & 1), body[1], properties
