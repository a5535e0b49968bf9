"""The receiving half of the tensor plane: generation filter, reassembly, duplicates, credit. Sans-IO, and no clock.

In: chunks and questions from the network, releases from the consumer. Out: whole tensors, and reports for the senders.

Memory: a pool's buffers hold at most ``Flow.held`` bytes of complete tensors plus one, plus one window of what was
under way when credit stopped. Credit comes back per chunk as it lands, so a tensor larger than the window passes; while
``Flow.held`` bytes lie complete and unreleased no new credit is given. A chunk beyond the credit is refused, whoever
sends it. Refusing is always safe: the sender asks later and sends it again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from asteroid_core.errors import WireError
from asteroid_core.wire.credit import ALL_CHUNKS, MAX_ITEMS, Flow, PoolName, Report, Status, ranges
from asteroid_core.wire.tensor import Header, Kind, Tag, Tensor, unpack

MAX_PARTIAL = 32
"""Incomplete tensors of one pool; a sender sends in order, so more than one happens only after loss."""
MAX_AHEAD = 4096
"""Transfers that may be complete before an older one is."""
MAX_EARLY = 256
TENSOR_OVERHEAD = 512
"""Counted for each held tensor beside its bytes, so that very small ones are bounded too."""


@dataclass(frozen=True)
class Received:
    """A whole tensor.

    Attributes:
        src: the sender, taken from the topic.
        stage: the multicast it came by, empty if direct.
        tag: what it is for.
        tensor: the elements; the buffer belongs to the consumer.
        token: names it when it is released.
    """

    src: str
    stage: str
    tag: Tag
    tensor: Tensor
    token: int


@dataclass
class _Partial:
    header: Header
    buffer: memoryview
    have: bytearray
    count: int = 0


@dataclass
class _Pool:
    src: str
    name: PoolName
    session: int
    grant: int
    landed: int = 0
    held: int = 0
    base: int = 0
    ahead: set[int] = field(default_factory=set)
    partial: dict[int, _Partial] = field(default_factory=dict)
    acked: list[int] = field(default_factory=list)
    missing: list[tuple[int, int, int]] = field(default_factory=list)
    reported: int = 0
    old_sessions: list[int] = field(default_factory=list)


@dataclass
class Counters:
    """What was dropped, and why; shown by ``stats``."""

    tensors: int = 0
    bytes: int = 0
    chunks: int = 0
    older_generation: int = 0
    newer_generation: int = 0
    duplicate: int = 0
    beyond_credit: int = 0
    foreign_sender: int = 0
    invalid: int = 0


class Inbox:
    """All that one device receives in one generation.

    Args:
        me: this device's name; its own multicasts are ignored.
        flow: settings shared with the senders.
    """

    def __init__(self, me: str, flow: Flow) -> None:
        self.me = me
        self.flow = flow
        self.generation: int | None = None
        self.counters = Counters()
        self._senders: frozenset[str] | None = None
        self._pools: dict[tuple[str, PoolName], _Pool] = {}
        self._dirty: dict[tuple[str, PoolName], _Pool] = {}
        self._held: dict[int, tuple[_Pool, int]] = {}
        self._early: dict[tuple[int, str, PoolName], tuple[int, int]] = {}
        self._tokens = 0

    def reset(self, generation: int, senders: Collection[str] | None = None) -> None:
        """Enter a generation; ``senders``, if given, are the only ones that are listened to.

        What came early for this generation was not kept, only noted: it is asked for again at once.
        """
        self.generation = generation
        self._senders = None if senders is None else frozenset(senders)
        self._pools.clear()
        self._dirty.clear()
        self._held.clear()
        early, self._early = self._early, {}
        for (gen, src, name), (session, last) in early.items():
            if gen > generation:
                self._early[gen, src, name] = (session, last)
            elif gen == generation and self._expected(src):
                pool = self._open(src, name, session)
                if pool is not None:
                    self._want(pool, last + 1)

    def _expected(self, src: str) -> bool:
        return self._senders is None or src in self._senders

    def on_chunk(self, src: str, stage: str, generation: int, kind: Kind, packet: memoryview) -> Received | None:
        """Take one chunk from a tensor topic; return the tensor that it completes.

        Raises:
            WireError: the chunk is not what a sender would send; it was dropped.
        """
        if stage and src == self.me:
            return None  # our own multicast; to itself a device sends when it measures its way through the broker
        if self.generation is None or generation < self.generation:
            self.counters.older_generation += 1
            return None
        if not self._expected(src):
            self.counters.foreign_sender += 1
            return None
        try:
            header, body = unpack(packet, self.flow.max_tensor)
            if header.tag.kind is not kind or header.tag.generation != generation:
                raise WireError(f"A chunk from {src} has another kind or generation than its topic.")
            return self._land(src, PoolName(kind, stage), header, body)
        except WireError:
            self.counters.invalid += 1
            raise

    def _land(self, src: str, name: PoolName, header: Header, body: memoryview) -> Received | None:
        session, number = header.transfer >> 32, header.transfer & 0xFFFFFFFF
        if header.tag.generation != self.generation:
            self.counters.newer_generation += 1
            self._note_early(header.tag.generation, src, name, session, number)
            return None
        pool = self._open(src, name, session)
        if pool is None:
            self.counters.beyond_credit += 1
            return None
        partial = pool.partial.get(number)
        if number < pool.base or number in pool.ahead:
            # Perhaps our acknowledgement was lost: the report that follows repeats it.
            self.counters.duplicate += 1
            self._acknowledge(pool, number)
            return None
        if partial is not None and partial.have[header.chunk]:
            self.counters.duplicate += 1
            return None
        charge = self.flow.charge(len(body))
        too_many = partial is None and len(pool.partial) >= MAX_PARTIAL and number != pool.base
        if pool.landed + charge > pool.grant or number > pool.base + MAX_AHEAD or too_many:
            self.counters.beyond_credit += 1
            return None
        if partial is None:
            # np.empty does not touch the pages, so a header alone costs no memory, whatever size it claims.
            buffer = np.empty(header.total, np.uint8).data
            partial = pool.partial[number] = _Partial(header, buffer, bytearray(header.chunks))
        elif not partial.header.same_tensor(header):
            raise WireError(f"Two chunks of transfer {number} from {src} do not belong to one tensor.")
        partial.buffer[header.offset : header.offset + len(body)] = body
        partial.have[header.chunk] = 1
        partial.count += 1
        self.counters.chunks += 1
        pool.landed += charge
        received = self._complete(pool, number, partial) if partial.count == header.chunks else None
        self._give(pool)
        return received

    def _complete(self, pool: _Pool, number: int, partial: _Partial) -> Received:
        del pool.partial[number]
        pool.ahead.add(number)
        while pool.base in pool.ahead:
            pool.ahead.discard(pool.base)
            pool.base += 1
        self._acknowledge(pool, number)
        header = partial.header
        cost = header.total + TENSOR_OVERHEAD
        pool.held += cost
        self._tokens += 1
        self._held[self._tokens] = (pool, cost)
        self.counters.tensors += 1
        self.counters.bytes += header.total
        tensor = Tensor(header.dtype, header.shape, partial.buffer)
        return Received(pool.src, pool.name.stage, header.tag, tensor, self._tokens)

    def _acknowledge(self, pool: _Pool, number: int) -> None:
        pool.acked.append(number)
        self._mark(pool)

    def _give(self, pool: _Pool) -> None:
        """Raise the grant, and tell it when it has moved by a quarter of a window."""
        if pool.held < self.flow.held:
            pool.grant = max(pool.grant, pool.landed + self.flow.window)
        if pool.grant - pool.reported >= self.flow.window // 4:
            self._mark(pool)

    def release(self, token: int) -> None:
        """The consumer no longer holds a tensor back; unknown tokens (of an older generation) are ignored."""
        entry = self._held.pop(token, None)
        if entry is not None:
            pool, cost = entry
            pool.held -= cost
            self._give(pool)

    def on_status(self, src: str, generation: int, status: Status) -> None:
        """Answer a sender's question: what is complete, what is missing, what may be sent."""
        if self.generation is None or generation < self.generation:
            self.counters.older_generation += 1
        elif not self._expected(src):
            self.counters.foreign_sender += 1
        elif generation > self.generation:
            self.counters.newer_generation += 1
            self._note_early(generation, src, status.pool, status.session, status.transfers - 1)
        else:
            pool = self._open(src, status.pool, status.session)
            if pool is not None:
                # The question came behind all that was sent before it. What the sender has sent since is under way:
                # to ask for it would double the load of a link that is merely slow.
                if pool.landed < status.sent:
                    self._want(pool, status.transfers)
                self._mark(pool)

    def _want(self, pool: _Pool, transfers: int) -> None:
        """Note what is missing of the first ``transfers`` transfers, the oldest first, as much as one report takes."""
        missing: list[tuple[int, int, int]] = []
        number = pool.base
        while number < transfers and len(missing) < MAX_ITEMS:
            partial = pool.partial.get(number)
            if partial is not None:
                gaps = ranges([i for i, got in enumerate(partial.have) if not got])
                missing.extend((number, first, last) for first, last in gaps)
            elif number not in pool.ahead:
                missing.append((number, 0, ALL_CHUNKS))
            number += 1
        pool.missing = missing[:MAX_ITEMS]
        self._mark(pool)

    def _note_early(self, generation: int, src: str, name: PoolName, session: int, number: int) -> None:
        key = (generation, src, name)
        known = self._early.get(key)
        if known is None and len(self._early) >= MAX_EARLY:
            return
        last = max(number, known[1]) if known is not None and known[0] == session else number
        self._early[key] = (session, last)

    def _open(self, src: str, name: PoolName, session: int) -> _Pool | None:
        """Return the pool of a sender's session; a new session of the same sender replaces the old one."""
        pool = self._pools.get((src, name))
        if pool is not None and pool.session == session:
            return pool
        old: list[int] = []
        if pool is not None:
            if session in pool.old_sessions:
                return None
            old = [*pool.old_sessions[-7:], pool.session]
        elif len(self._pools) >= self.flow.max_pools:
            return None
        window = self.flow.window
        fresh = _Pool(src, name, session, grant=window, reported=window, old_sessions=old)
        self._pools[src, name] = fresh
        return fresh

    def _mark(self, pool: _Pool) -> None:
        self._dirty[pool.src, pool.name] = pool

    def reports(self) -> list[tuple[str, Report]]:
        """Return what the senders should be told now; call it after each batch of chunks, questions and releases."""
        out: list[tuple[str, Report]] = []
        for pool in self._dirty.values():
            numbers = sorted({n for n in pool.acked if n >= pool.base} | (pool.ahead if pool.missing else set()))
            complete = tuple(ranges(numbers)[:MAX_ITEMS])
            out.append(
                (
                    pool.src,
                    Report(pool.name, pool.session, pool.grant, pool.landed, pool.base, complete, tuple(pool.missing)),
                )
            )
            pool.reported = pool.grant
            pool.acked.clear()
            pool.missing = []
        self._dirty.clear()
        return out

    def held(self) -> int:
        """Bytes (and overhead) of complete tensors that the consumer has not released."""
        return sum(cost for _, cost in self._held.values())

    def buffered(self) -> int:
        """Bytes of buffers of tensors that are not complete."""
        return sum(p.header.total for pool in self._pools.values() for p in pool.partial.values())
