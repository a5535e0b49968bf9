"""The control link: JSON messages, last will, one queue of events. Imports no tensors, so a supervisor stays light."""

from __future__ import annotations

import queue
from uuid import uuid4

from asteroid_core.link.base import Broker, Connected, Disconnected, Event, Message, Refused, Transport, WillFactory
from asteroid_core.link.loop import LinkLoop
from asteroid_core.link.paho_link import PahoTransport


class ControlLink(LinkLoop):
    """Publish and subscribe; whatever happens comes out of ``events`` in order.

    Args:
        transport: see ``open_control`` for the usual one.
        will: makes the last will of each connection from its random id.
        events: where events are put; a process with several links may hand in one queue.
    """

    def __init__(
        self, transport: Transport, will: WillFactory | None = None, events: queue.SimpleQueue[Event] | None = None
    ) -> None:
        super().__init__(transport, will, "control-link")
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue() if events is None else events

    def open(self) -> ControlLink:
        """Connect.

        Raises:
            BrokerError: says what is wrong and what to do.
        """
        self._start()
        return self

    def flush(self, timeout: float) -> bool:
        """Wait until the broker has confirmed everything that was published before; return whether it has."""
        return self._wait_until(self._transport.idle, timeout)

    def on_event(self, event: Connected | Disconnected | Refused) -> None:
        """Restore the session if needed and pass the event on."""
        if isinstance(event, Connected):
            self.connected_again(event)
        self.events.put(event)

    def on_message(
        self,
        topic: str,
        payload: memoryview,
        retain: bool,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> None:
        """Pass a message on."""
        self.events.put(Message(topic, bytes(payload), retain, response_topic, correlation))


def open_control(
    broker: Broker,
    client_id: str | None = None,
    will: WillFactory | None = None,
    events: queue.SimpleQueue[Event] | None = None,
) -> ControlLink:
    """Connect to a broker for control messages.

    Raises:
        BrokerError: says what is wrong and what to do.
    """
    transport = PahoTransport(broker, client_id or f"asteroid-{uuid4().hex[:12]}")
    return ControlLink(transport, will, events).open()
