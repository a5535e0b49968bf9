"""Sentences for what a broker or the network says when something does not work. Pure: no socket."""

from __future__ import annotations

import socket
import ssl

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import Broker

_CONNACK: dict[int, tuple[str, str]] = {
    0x81: ("says that our connect packet is malformed", "Use a broker that speaks MQTT 5."),
    0x82: ("speaks of a protocol error", "Use a broker that speaks MQTT 5."),
    0x84: ("does not speak MQTT 5", "Use mosquitto 2, EMQX 5 or rumqttd with an MQTT 5 listener."),
    0x85: ("does not accept our client id", "Choose another device name."),
    0x86: ("refuses the user name or the password", "Check username and password in the settings."),
    0x87: ("does not let this user in", "Check username and password, and the broker's access rules."),
    0x88: ("is not available", "Look at its log."),
    0x89: ("is busy", "Try again later, or raise its connection limit."),
    0x8A: ("has banned this client", "Look at its log."),
    0x95: ("says that our packet is too large", "Raise its packet limit."),
    0x97: ("says that a quota is exceeded", "Raise its quota for this user."),
    0x9F: ("says that we connect too often", "Wait a little, or raise its connection rate."),
}

_PUBACK: dict[int, str] = {
    0x80: "for a reason it does not give",
    0x83: "for a reason of its own",
    0x87: "because its access rules do not allow it",
    0x8F: "because the filter is not valid for it",
    0x90: "because the topic name is not valid for it",
    0x95: "because the packet is too large",
    0x97: "because a quota is exceeded",
    0x99: "because the payload format is wrong",
}

_DISCONNECT: dict[int, str] = {
    0x00: "The connection was closed",
    0x81: "The broker could not read a packet of ours",
    0x82: "The broker saw a protocol error",
    0x87: "The broker does not allow what we did",
    0x8B: "The broker is shutting down",
    0x8D: "The broker heard nothing from us for longer than the keep-alive",
    0x8E: "Another client took over our client id: two processes use one device name",
    0x93: "We sent more messages at once than the broker takes",
    0x95: "A packet of ours is larger than the broker takes",
    0x97: "A quota of the broker is exceeded",
    0x98: "An administrator of the broker closed the connection",
}


def connect_refused(broker: Broker, code: int) -> BrokerError:
    """Return the error for a CONNACK reason code (MQTT 5; 3.1.1 return codes 1 to 5 are understood too)."""
    code = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}.get(code, code)
    what, remedy = _CONNACK.get(code, (f"refuses the connection with reason 0x{code:02X}", "Look at its log."))
    return BrokerError(f"The broker at {broker.address} {what}.", remedy)


def connect_failed(broker: Broker, error: Exception) -> BrokerError:
    """Return the error for a failure below MQTT."""
    at = broker.address
    if isinstance(error, socket.gaierror):
        return BrokerError(
            f"The name of the broker {broker.host!r} is not known.", "Check broker host in the settings."
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerError(
            f"The certificate of the broker at {at} is not trusted: {error.verify_message}.",
            "Set ca_file to the authority that signed it, and use the host name that the certificate carries.",
        )
    if isinstance(error, ssl.SSLError):
        return BrokerError(
            f"No TLS connection to the broker at {at}: {error.reason or error}.",
            "Check that this port is the TLS port (usually 8883) and that ca_file fits.",
        )
    if isinstance(error, ConnectionRefusedError):
        return BrokerError(
            f"Nothing listens at {at}, the broker refused the connection.",
            "Start the broker, or check host and port in the settings.",
        )
    if isinstance(error, FileNotFoundError):
        return BrokerError(f"The file {error.filename!r} for TLS does not exist.", "Check ca_file in the settings.")
    if isinstance(error, TimeoutError):
        return BrokerError(
            f"The broker at {at} does not answer within {broker.connect_timeout:g} s.",
            "Check host, port and firewall; a TLS port answers only with TLS settings.",
        )
    if isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
        return BrokerError(
            f"The broker at {at} closed the connection before it said anything.",
            "Check that the port speaks MQTT 5, with TLS exactly if the settings have it; look at the broker's log.",
        )
    return BrokerError(f"The broker at {at} cannot be reached: {error}.", "Check the network, host and port.")


def publish_refused(topic: str, code: int) -> str:
    """Return the sentence for a PUBACK or SUBACK reason code."""
    why = _PUBACK.get(code, f"with reason 0x{code:02X}")
    return f"The broker refused {topic!r} {why}."


def disconnected(broker: Broker, code: int | None, error: Exception | None = None) -> str:
    """Return the sentence for a lost connection."""
    what = _DISCONNECT.get(code, f"The broker closed the connection with reason 0x{code:02X}") if code else None
    if what is None:
        detail = f": {error}" if error is not None and str(error) else ""
        what = f"The connection to the broker was lost{detail}"
    return f"{what} ({broker.address})."


def too_large(broker: Broker, topic: str, size: int, limit: int) -> str:
    """Return the sentence for a message that the broker would not take."""
    return (
        f"A message of {size} bytes on {topic!r} is larger than the {limit} that the broker at {broker.address} takes."
    )
