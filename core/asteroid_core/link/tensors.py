"""The tensor link: sends and receives whole tensors end to end over any transport, with credits and acknowledgements.

One thread owns the transport, the outbox and the inbox. A consumer that stalls stops only credit, never the thread, so
keep-alive goes on. Control messages of the same connection (the worker's status and will, its assignment) come out of
``events``, tensors out of ``receive``.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Collection
from uuid import uuid4

from asteroid_core.errors import InputError, WireError
from asteroid_core.link.base import (
    CHUNK_BYTES,
    Broker,
    Connected,
    Disconnected,
    Event,
    Message,
    Publication,
    Refused,
    Subscription,
    Transport,
    WillFactory,
    chunk_limit,
)
from asteroid_core.link.bulk import BulkTransport
from asteroid_core.link.loop import IDLE_POLL, LinkLoop
from asteroid_core.wire import credit, topics
from asteroid_core.wire.credit import Flow, Report, Status
from asteroid_core.wire.inbox import Inbox, Received
from asteroid_core.wire.outbox import Outbox, Outgoing, Route
from asteroid_core.wire.tensor import KIND_BY_NAME, MIN_CHUNK, Kind, Tag, Tensor

EVERYONE = "all"
"""The stage that every worker of a job belongs to (votes)."""
BURST = 8
"""Chunks handed to the transport before it is polled again."""


class TensorLink(LinkLoop):
    """See the module's header; ``open_tensors`` makes the usual one.

    Args:
        transport: moves the messages.
        broker: for sentences.
        job: name of the job, a level of every topic.
        me: this device.
        will: makes the last will of each connection from its random id.
        flow: credit settings, equal on all devices.
        chunk_bytes: wanted length of a chunk; lowered to what the broker takes.
        qos: of chunks and credits.
        events: where control events are put.
    """

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        job: str,
        me: str,
        *,
        will: WillFactory | None = None,
        flow: Flow | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        qos: int = 1,
        events: queue.SimpleQueue[Event] | None = None,
    ) -> None:
        super().__init__(transport, will, "tensor-link")
        self._broker = broker
        self._job = job
        self._me = me
        self._qos = qos
        self._flow = flow or Flow()
        self._wanted_chunk = chunk_bytes
        self._outbox = Outbox(random.getrandbits(32), self._flow, chunk_bytes)
        self._inbox = Inbox(me, self._flow)
        self._received: queue.SimpleQueue[tuple[int, Received | None]] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue() if events is None else events
        self._generation = -1
        self._epoch = 0
        """Counts calls of ``set_generation``; written by the owner's thread, the boxes follow in the link's."""
        self._boxes_epoch = 0
        self._stale = 0
        self._topic_cache: dict[tuple[Route, Kind], str] = {}
        self._stages: frozenset[str] = frozenset()
        self._invalid: str = ""
        # backlog() and flush() are asked by other threads; the counts are what both sides may touch.
        self._counts = threading.Condition()
        self._backlog: dict[tuple[str, Kind], int] = {}
        self._transfers: dict[tuple[str, Kind], int] = {}

    def open(self) -> TensorLink:
        """Connect and subscribe to the tensors for this device.

        Raises:
            BrokerError: says what is wrong and what to do.
        """
        direct, _ = topics.data_filters(self._job, self._me)
        self._subscriptions[direct] = Subscription(direct, self._qos)
        self._start(lambda: chunk_limit(self._wanted_chunk, self._transport.max_packet, self._broker))
        return self

    # ---- the owner's side: any thread

    def set_generation(
        self, generation: int, stages: Collection[str] = (), senders: Collection[str] | None = None
    ) -> None:
        """Enter a generation: everything of older ones is forgotten on both sides, also what waits in ``receive``.

        Args:
            generation: its number.
            stages: stages whose multicasts this device takes, beside "all".
            senders: the only devices that are listened to; None for any.
        """
        mine = frozenset(stages) | {EVERYONE}
        with self._counts:
            self._generation = generation
            self._epoch = epoch = self._epoch + 1
            self._backlog.clear()
            self._transfers.clear()
            self._counts.notify_all()

        def command() -> None:
            self._boxes_epoch = epoch
            self._outbox.reset(generation, self._chunk_bytes())
            self._inbox.reset(generation, senders)
            self._topic_cache.clear()
            old, self._stages = self._stages, mine
            if fresh := mine - old:
                # no_local: our own multicasts would come back to us at the full price of the link.
                wanted = tuple(
                    Subscription(topics.pattern("multicast", job=self._job, stage=stage), self._qos, no_local=True)
                    for stage in sorted(fresh)
                )
                self._subscriptions.update({s.filter: s for s in wanted})
                if self._transport.connected:
                    self._transport.subscribe(wanted)

        self._call(command)

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for one device; never blocks. Its bytes must not change before it is acknowledged."""
        self._put(Route((dst,)), tag, tensor)

    def multicast(self, stage: str, members: Collection[str], tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for all members of a stage but this device; one publish, at the pace of the slowest."""
        self._put(Route(tuple(sorted(set(members) - {self._me})), stage), tag, tensor)

    def _put(self, route: Route, tag: Tag, tensor: Tensor) -> None:
        if not route.members:
            return
        if tensor.nbytes > self._flow.max_tensor:
            raise InputError(
                f"A tensor of {tensor.nbytes} bytes is larger than the limit of {self._flow.max_tensor}.",
                "Send it in parts, or raise the limit on all devices.",
            )
        with self._counts:
            if tag.generation < self._generation:
                self._stale += 1  # another thread has entered a newer generation meanwhile: nobody wants this one
                return
            if tag.generation > self._generation:
                raise InputError(
                    f"A tensor of generation {tag.generation} cannot be sent in generation {self._generation}.",
                    "Enter the generation first.",
                )
            epoch = self._epoch
            for member in route.members:
                key = (member, tag.kind)
                self._backlog[key] = self._backlog.get(key, 0) + tensor.nbytes
                self._transfers[key] = self._transfers.get(key, 0) + 1

        def command() -> None:
            if epoch == self._boxes_epoch:
                self._outbox.put(route, tag, tensor, time.monotonic())

        self._call(command)

    def receive(self, timeout: float | None = None) -> Received | None:
        """Return the next whole tensor of this generation, or None after ``timeout`` seconds or a control event."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                epoch, received = self._received.get(left != 0.0, left)
            except queue.Empty:
                return None
            if received is None:
                return None
            if epoch == self._epoch:
                return received

    def release(self, received: Received) -> None:
        """The consumer no longer holds this tensor back: its sender gets credit again.

        A consumer that gathers many tensors before it works on any (a reduction over many parameters) must release
        them as it takes them, or the senders wait for credit that never comes.
        """
        # Not through _call: a consumer that still releases while the link is being closed has made no mistake.
        self._commands.append(lambda: self._inbox.release(received.token))
        self._transport.wake()

    def backlog(self, dst: str | None = None, kind: Kind | None = None) -> int:
        """Bytes that were handed to ``send`` and are not yet acknowledged; a multicast counts for each member."""
        with self._counts:
            return sum(
                size
                for (member, k), size in self._backlog.items()
                if (dst is None or dst == member) and (kind is None or kind is k)
            )

    def flush(self, timeout: float) -> bool:
        """Wait until everything sent before is acknowledged by its receivers; return whether it is."""
        with self._counts:
            return self._counts.wait_for(lambda: not self._transfers, timeout)

    @property
    def chunks(self) -> int:
        """Chunks that have landed since the start; rises while a tensor is still on its way."""
        return self._inbox.counters.chunks

    def stats(self) -> dict[str, int | str]:
        """Return the length of a chunk, and what was sent, repeated, received and dropped since the start."""
        out, counters = self._outbox, self._inbox.counters
        return {
            "chunk_bytes": self._chunk_bytes(),
            "chunks_sent": out.chunks_sent,
            "chunks_again": out.chunks_again,
            "questions": out.questions,
            "refused_reports": out.refused_reports,
            "stale_sends": self._stale,
            **vars(counters),
            "last_invalid": self._invalid,
        }

    # ---- the thread's side

    def _chunk_bytes(self) -> int:
        limit = chunk_limit(self._wanted_chunk, self._transport.max_packet, self._broker)
        return max(MIN_CHUNK, limit)

    def work(self, now: float) -> float:
        """Send reports, questions and chunks."""
        transport, outbox = self._transport, self._outbox
        if not transport.connected:
            return IDLE_POLL
        reports = self._inbox.reports()
        if reports:
            by_peer: dict[str, list[Report | Status]] = {}
            for peer, report in reports:
                by_peer.setdefault(peer, []).append(report)
            for peer, records in by_peer.items():
                self._send_credit(peer, records)
        for peer, question in outbox.questions_due(now):
            self._send_credit(peer, [question])
        for _ in range(BURST):
            if not transport.room() or (outgoing := outbox.next()) is None:
                break
            transport.publish(
                Publication(self._topic(outgoing), (outgoing.head, outgoing.body), self._qos, durable=False)
            )
        else:
            return 0.0
        deadline = outbox.deadline()
        return IDLE_POLL if deadline is None else max(0.0, deadline - now)

    def _send_credit(self, peer: str, records: list[Report | Status]) -> None:
        topic = topics.build(
            "tensor", job=self._job, generation=self._inbox.generation or 0, dst=peer, src=self._me, kind="credit"
        )
        for start in range(0, len(records), credit.MAX_RECORDS):
            payload = credit.encode(records[start : start + credit.MAX_RECORDS])
            self._transport.publish(Publication(topic, (payload,), self._qos, durable=False))

    def _topic(self, outgoing: Outgoing) -> str:
        key = (outgoing.route, outgoing.kind)
        topic = self._topic_cache.get(key)
        if topic is None:
            route, generation = outgoing.route, self._outbox.generation or 0
            fields: dict[str, str | int] = {
                "job": self._job,
                "generation": generation,
                "src": self._me,
                "kind": outgoing.kind.value,
            }
            if route.stage:
                topic = topics.build("multicast", stage=route.stage, **fields)
            else:
                topic = topics.build("tensor", dst=route.members[0], **fields)
            self._topic_cache[key] = topic
        return topic

    def on_event(self, event: Connected | Disconnected | Refused) -> None:
        """Restore the session, and ask receivers what they have: anything under way may be lost."""
        if isinstance(event, Connected):
            self.connected_again(event)
            self._outbox.reconnected(time.monotonic())
        self.events.put(event)

    def on_message(
        self,
        topic: str,
        payload: memoryview,
        retain: bool,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> None:
        """Sort a message: control, credit or chunk."""
        if not topic.startswith(topics.DATA):
            self.events.put(Message(topic, bytes(payload), retain, response_topic, correlation))
            self._received.put((0, None))  # who waits for a tensor looks at what was said
            return
        try:
            self._on_data(topic, payload)
        except WireError as error:
            self._invalid = str(error)

    def _on_data(self, topic: str, payload: memoryview) -> None:
        parsed = topics.parse(topic)
        kind = KIND_BY_NAME.get(parsed[1]["kind"]) if parsed is not None else None
        if parsed is None or kind is None or not parsed[1]["generation"].isdecimal():
            self._inbox.counters.invalid += 1
            raise WireError(f"A message came on {topic!r}, which is not a tensor topic.")
        fields = parsed[1]
        generation = int(fields["generation"][:10])
        src, stage = fields["src"], fields.get("stage", "")
        if kind is Kind.CREDIT:
            self._on_credit(src, generation, payload)
        elif not stage or stage in self._stages:
            received = self._inbox.on_chunk(src, stage, generation, kind, payload)
            if received is not None:
                self._received.put((self._boxes_epoch, received))

    def _on_credit(self, src: str, generation: int, payload: memoryview) -> None:
        try:
            records = credit.decode(payload)
        except WireError:
            self._inbox.counters.invalid += 1
            raise
        for record in records:
            if isinstance(record, Status):
                self._inbox.on_status(src, generation, record)
            elif generation == self._outbox.generation:
                self._outbox.on_report(src, record, time.monotonic())
        self._count_down(self._outbox.acknowledged())

    def _count_down(self, acknowledged: list[tuple[str, Kind, int]]) -> None:
        if not acknowledged:
            return
        with self._counts:
            if self._epoch != self._boxes_epoch:
                return
            for member, kind, size in acknowledged:
                left = self._transfers[member, kind] - 1
                self._backlog[member, kind] -= size
                self._transfers[member, kind] = left
                if not left:
                    del self._transfers[member, kind], self._backlog[member, kind]
            if not self._transfers:
                self._counts.notify_all()


def open_tensors(
    broker: Broker,
    job: str,
    me: str,
    *,
    will: WillFactory | None = None,
    flow: Flow | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    qos: int = 1,
    events: queue.SimpleQueue[Event] | None = None,
) -> TensorLink:
    """Connect to a broker for tensors.

    Raises:
        BrokerError: says what is wrong and what to do.
    """
    transport = BulkTransport(broker, f"asteroid-{job}-{me}-{uuid4().hex[:6]}")
    return TensorLink(
        transport, broker, job, me, will=will, flow=flow, chunk_bytes=chunk_bytes, qos=qos, events=events
    ).open()
