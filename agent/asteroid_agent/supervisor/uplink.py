"""The supervisor's connection: a will that names the connection, a heartbeat of its thread, and no fight for a name.

A broker gives a client id to whoever connects last (MQTT 5 reason 0x8E). A link that reconnects at once would take it
back, and two agents of one name would throw each other out for ever; so this one stays away once it was told.
"""

from __future__ import annotations

import queue
import time
from dataclasses import replace
from typing import Any

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import (
    SUPERVISOR_KEEPALIVE_S,
    SUPERVISOR_WILL_DELAY_S,
    Broker,
    Connected,
    Disconnected,
    Handler,
    Refused,
    Will,
    WillFactory,
)
from asteroid_core.link.control import ControlLink
from asteroid_core.link.paho_link import PahoTransport
from asteroid_core.link.reasons import disconnected
from asteroid_core.wire import topics
from asteroid_core.wire.messages import AgentStatus, encode

SESSION_S = 60
"""Longer than the will's delay, which ends with the session; commands wait this long for us."""
_SESSION_TAKEN_OVER = 0x8E


class _Shy(Handler):
    """Stands between a transport and its link, and notices that the client id was taken over."""

    def __init__(self, handler: Handler, taken_over: str) -> None:
        self._handler, self._sentence = handler, taken_over
        self.taken_over = False

    def on_event(self, event: Connected | Disconnected | Refused) -> None:
        """Something happened to the connection."""
        if isinstance(event, Disconnected) and event.reason == self._sentence:
            self.taken_over = True
        self._handler.on_event(event)

    def on_message(
        self,
        topic: str,
        payload: memoryview,
        retain: bool,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> None:
        """A message came in."""
        self._handler.on_message(topic, payload, retain, response_topic, correlation)


class _ShyTransport(PahoTransport):
    """Does not connect again after the client id was taken over."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        super().__init__(broker, client_id)
        self.sentence = disconnected(broker, _SESSION_TAKEN_OVER)
        self._shy: _Shy | None = None

    def connect(self, handler: Handler, will: WillFactory | None) -> None:
        """Connect and wait for the CONNACK."""
        if self._shy is None:
            self._shy = _Shy(handler, self.sentence)
        if self._shy.taken_over:
            raise BrokerError(self.sentence)
        super().connect(self._shy, will)


class Uplink(ControlLink):
    """See the module's header; ``open`` connects.

    Args:
        broker: where to connect; keep-alive, session and clean start are chosen here.
        agent: name of this device.
        events: takes what happens.
    """

    def __init__(self, broker: Broker, agent: str, events: queue.SimpleQueue[Any]) -> None:
        broker = replace(broker, keepalive=SUPERVISOR_KEEPALIVE_S, clean_start=False, session_expiry=SESSION_S)
        transport = _ShyTransport(broker, f"asteroid-agent-{agent}")
        super().__init__(transport, lambda connection: last_will(agent, connection), events)
        self.taken_over_sentence = transport.sentence
        self.beat = time.monotonic()
        """When the thread was last seen going round."""

    def work(self, now: float) -> float:
        """Note that the thread lives."""
        self.beat = now
        return super().work(now)


def last_will(agent: str, connection: str) -> Will:
    """Return what the broker says for us when this connection is lost."""
    status = AgentStatus(agent=agent, state="lost", connection=connection, reason="the broker lost its connection")
    return Will(topics.build("agent_status", agent=agent), encode(status), delay=SUPERVISOR_WILL_DELAY_S)
