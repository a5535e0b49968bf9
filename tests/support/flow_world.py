"""Outboxes and inboxes around an imaginary network in virtual time that loses, doubles, delays and reorders."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from random import Random

from asteroid_core.errors import WireError
from asteroid_core.wire import credit
from asteroid_core.wire.credit import Flow, Report, Status
from asteroid_core.wire.inbox import Inbox, Received
from asteroid_core.wire.outbox import Outbox
from asteroid_core.wire.tensor import Kind


@dataclass
class Weather:
    """What the network does to a message while ``until`` has not come; later it is fair."""

    loss: float = 0.0
    double: float = 0.0
    jitter: float = 0.0
    until: float = 60.0


@dataclass
class Node:
    """One device: both boxes, and the consumer's habits."""

    name: str
    outbox: Outbox
    inbox: Inbox
    stages: frozenset[str]
    got: list[Received] = field(default_factory=list)
    unreleased: list[Received] = field(default_factory=list)
    stalled_until: float = 0.0
    most_held: int = 0


class World:
    """Runs nodes until nothing is left to do; every message goes through the codec's bytes."""

    def __init__(self, names: list[str], flow: Flow, chunk: int, weather: Weather, seed: int) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.now = 0.0
        self.most_in_air = 0
        self._events: list[tuple[float, int, str, str, str, int, Kind, bytes]] = []
        self._in_air: dict[tuple[str, str, Kind], int] = {}
        self._order = itertools.count()
        self.flow = flow
        self.nodes = {
            name: Node(name, Outbox(self.random.getrandbits(32), flow, chunk), Inbox(name, flow), frozenset({"s"}))
            for name in names
        }

    def enter(self, generation: int, *names: str) -> None:
        for name in names or tuple(self.nodes):
            node = self.nodes[name]
            node.outbox.reset(generation)
            node.inbox.reset(generation)
            node.unreleased.clear()

    def _throw(self, src: str, dst: str, stage: str, generation: int, kind: Kind, payload: bytes) -> None:
        bad = self.now < self.weather.until
        copies = 1
        if bad and self.random.random() < self.weather.loss:
            copies = 0
        elif bad and self.random.random() < self.weather.double:
            copies = 2
        for _ in range(copies):
            at = self.now + 0.001 + (self.random.random() * self.weather.jitter if bad else 0.0)
            if kind is not Kind.CREDIT:
                key = (src, dst, kind)
                self._in_air[key] = self._in_air.get(key, 0) + len(payload)
                self.most_in_air = max(self.most_in_air, self._in_air[key])
            heapq.heappush(self._events, (at, next(self._order), src, dst, stage, generation, kind, payload))

    def _pump(self, node: Node) -> None:
        if self.now >= node.stalled_until:
            for received in node.unreleased:
                node.inbox.release(received.token)
            node.unreleased.clear()
        for peer, report in node.inbox.reports():
            self._credit(node, peer, node.inbox.generation or 0, report)
        for peer, status in node.outbox.questions_due(self.now):
            self._credit(node, peer, node.outbox.generation or 0, status)
        while (out := node.outbox.next()) is not None:
            payload = out.head + bytes(out.body)
            members = tuple(self.nodes) if out.route.stage else out.route.members
            for member in members:
                self._throw(node.name, member, out.route.stage, node.outbox.generation or 0, out.kind, payload)

    def _credit(self, node: Node, peer: str, generation: int, record: Report | Status) -> None:
        self._throw(node.name, peer, "", generation, Kind.CREDIT, credit.encode([record]))

    def _arrive(self, src: str, dst: str, stage: str, generation: int, kind: Kind, payload: bytes) -> None:
        node = self.nodes[dst]
        if kind is Kind.CREDIT:
            for record in credit.decode(memoryview(payload)):
                if isinstance(record, Status):
                    node.inbox.on_status(src, generation, record)
                elif generation == node.outbox.generation:
                    node.outbox.on_report(src, record, self.now)
            return
        self._in_air[src, dst, kind] -= len(payload)
        try:
            received = node.inbox.on_chunk(src, stage, generation, kind, memoryview(payload))
        except WireError:
            raise AssertionError("an honest chunk was refused") from None
        if received is not None:
            node.got.append(received)
            node.unreleased.append(received)
        node.most_held = max(node.most_held, node.inbox.held() + node.inbox.buffered())

    def run(self, until: float = 600.0) -> None:
        """Run until nobody has a backlog, or until ``until``."""
        while self.now < until:
            for node in self.nodes.values():
                self._pump(node)
            if not self._events and not any(n.outbox.transfers() for n in self.nodes.values()):
                return
            wakes = [d for n in self.nodes.values() if (d := n.outbox.deadline()) is not None]
            wakes += [n.stalled_until for n in self.nodes.values() if n.stalled_until > self.now]
            if self._events:
                wakes.append(self._events[0][0])
            if not wakes:
                return
            self.now = max(self.now, min(wakes))
            while self._events and self._events[0][0] <= self.now:
                _, _, src, dst, stage, generation, kind, payload = heapq.heappop(self._events)
                self._arrive(src, dst, stage, generation, kind, payload)
