"""The sending half of the tensor plane: pools of credit, acknowledgements, repetition. Sans-IO; time is an argument.

In: tensors to send, reports of receivers, the clock. Out: chunks that may go now, questions to ask, transfers that are
complete. It keeps a reference to a tensor's bytes until every receiver has the whole tensor.

How loss is found: messages of one publisher stay in order at the broker, so a Status question that follows the chunks
arrives after them, and what the receiver has not got by then is lost. It answers with exactly that. A sender asks when
the oldest transfer under way has had no acknowledgement for ``Flow.retry`` seconds, or when it is out of credit
that long; repeated questions back off. So a slow link is never flooded with repetitions of what is merely late.

Snapshots (``GAPS``) go in the gaps: only when nothing else may go.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from asteroid_core.errors import InputError
from asteroid_core.wire.credit import Flow, PoolName, Report, Status
from asteroid_core.wire.tensor import Kind, Tag, Tensor, chunk_count, pack

GAPS = frozenset({Kind.COPY})
"""Kinds that wait for every other one."""


@dataclass(frozen=True)
class Route:
    """Where tensors go: one device, or all members of a stage at once.

    Attributes:
        members: the receivers; exactly one when ``stage`` is empty.
        stage: name of the multicast, empty for a direct route.
    """

    members: tuple[str, ...]
    stage: str = ""


@dataclass(frozen=True)
class Outgoing:
    """One chunk to publish."""

    route: Route
    kind: Kind
    head: bytes
    body: memoryview


@dataclass
class _Transfer:
    number: int
    tag: Tag
    tensor: Tensor
    chunks: int
    waiting: set[str]
    sent: int = 0
    """Chunks that have been sent once."""
    again: set[int] = field(default_factory=set)
    """Chunks that a receiver asked for again and that have not gone yet."""


@dataclass
class _Pool:
    route: Route
    name: PoolName
    grants: dict[str, int]
    landed: dict[str, int]
    next_number: int = 0
    sent: int = 0
    unsent: deque[_Transfer] = field(default_factory=deque)
    open: OrderedDict[int, _Transfer] = field(default_factory=OrderedDict)
    """Transfers that have begun and are not acknowledged by all."""
    again: deque[tuple[_Transfer, int]] = field(default_factory=deque)
    bytes: int = 0
    pause: float = 0.0
    deadline: float | None = None


class Outbox:
    """All that one device sends in one generation.

    Args:
        session: a number that is new each time the process starts; receivers tell a restarted sender by it.
        flow: settings shared with the receivers.
        chunk_bytes: length of a chunk; may be lowered before a generation begins.
    """

    def __init__(self, session: int, flow: Flow, chunk_bytes: int) -> None:
        flow.check(chunk_bytes)
        self.session = session & 0xFFFFFFFF
        self.flow = flow
        self.chunk_bytes = chunk_bytes
        self.generation: int | None = None
        self.chunks_sent = 0
        self.chunks_again = 0
        self.questions = 0
        self.refused_reports = 0
        self._acknowledged: list[tuple[str, Kind, int]] = []
        self._pools: dict[tuple[Route | str, Kind], _Pool] = {}
        self._ready: deque[_Pool] = deque()
        self._patient: deque[_Pool] = deque()
        self._listed: set[int] = set()

    def reset(self, generation: int, chunk_bytes: int | None = None) -> int:
        """Enter a generation: forget what is under way and return how many transfers that was."""
        dropped = sum(len(pool.unsent) + len(pool.open) for pool in self._pools.values())
        self.generation = generation
        # Numbers start anew, so receivers must see a new sender even if the generation is the same one again.
        self.session = (self.session + 1) & 0xFFFFFFFF
        if chunk_bytes is not None:
            self.flow.check(chunk_bytes)
            self.chunk_bytes = chunk_bytes
        self._acknowledged.clear()
        self._pools.clear()
        self._ready.clear()
        self._patient.clear()
        self._listed.clear()
        return dropped

    def put(self, route: Route, tag: Tag, tensor: Tensor, now: float) -> None:
        """Take a tensor to send; its bytes must not change until it is acknowledged.

        Raises:
            InputError: the tensor is too large, of another generation, or the stage's members changed.
        """
        if tag.generation != self.generation:
            raise InputError(
                f"A tensor of generation {tag.generation} cannot be sent in generation {self.generation}.",
                "Enter the generation first.",
            )
        if tensor.nbytes > self.flow.max_tensor:
            raise InputError(
                f"A tensor of {tensor.nbytes} bytes is larger than the limit of {self.flow.max_tensor}.",
                "Send it in parts, or raise the limit on all devices.",
            )
        if not route.members:
            return
        pool = self._pool(route, tag.kind)
        number = pool.next_number
        pool.next_number += 1
        transfer = _Transfer(number, tag, tensor, chunk_count(tensor.nbytes, self.chunk_bytes), set(pool.route.members))
        pool.unsent.append(transfer)
        pool.bytes += tensor.nbytes
        if pool.deadline is None:
            self._arm(pool, now)
        self._list(pool)

    def _pool(self, route: Route, kind: Kind) -> _Pool:
        key = (route.stage or route, kind)
        pool = self._pools.get(key)
        if pool is None:
            grants = dict.fromkeys(route.members, self.flow.window)
            pool = _Pool(route, PoolName(kind, route.stage), grants, dict.fromkeys(route.members, 0))
            self._pools[key] = pool
        elif pool.route != route:
            raise InputError(
                f"The members of stage {route.stage!r} changed from {pool.route.members} to {route.members}.",
                "Members change only with the generation.",
            )
        return pool

    def next(self) -> Outgoing | None:
        """Return the next chunk that may go now, taking the pools in turn, repetitions first; None if none may."""
        while queue := self._ready or self._patient:
            pool = queue.popleft()
            self._listed.discard(id(pool))
            outgoing = self._next_of(pool)
            if outgoing is not None:
                self._list(pool)
                return outgoing
        return None

    def _next_of(self, pool: _Pool) -> Outgoing | None:
        while pool.again:
            transfer, chunk = pool.again.popleft()
            if chunk in transfer.again and transfer.waiting:
                transfer.again.discard(chunk)
                self.chunks_again += 1
                return self._outgoing(pool, transfer, chunk)
        if not pool.unsent:
            return None
        transfer = pool.unsent[0]
        chunk = transfer.sent
        length = min(self.chunk_bytes, transfer.tensor.nbytes - chunk * self.chunk_bytes)
        charge = self.flow.charge(length)
        if pool.sent + charge > min(pool.grants.values()):
            return None
        pool.sent += charge
        transfer.sent += 1
        self.chunks_sent += 1
        pool.open[transfer.number] = transfer
        if transfer.sent == transfer.chunks:
            pool.unsent.popleft()
        return self._outgoing(pool, transfer, chunk)

    def _outgoing(self, pool: _Pool, transfer: _Transfer, chunk: int) -> Outgoing:
        number = self.session << 32 | transfer.number
        head, body = pack(transfer.tag, transfer.tensor, number, chunk, self.chunk_bytes)
        return Outgoing(pool.route, pool.name.kind, head, body)

    def _list(self, pool: _Pool) -> None:
        if id(pool) not in self._listed and (pool.again or pool.unsent):
            self._listed.add(id(pool))
            (self._patient if pool.name.kind in GAPS else self._ready).append(pool)

    def on_report(self, source: str, report: Report, now: float) -> bool:
        """Take a receiver's report; return whether it was one of ours and made sense."""
        key = report.pool.stage or Route((source,))
        pool = self._pools.get((key, report.pool.kind))
        if pool is None or source not in pool.grants or report.session != self.session:
            self.refused_reports += 1
            return False
        begun = pool.next_number - len(pool.unsent) + bool(pool.unsent and pool.unsent[0].sent)
        if report.landed > pool.sent or report.base > begun:
            self.refused_reports += 1
            return False
        pool.grants[source] = max(pool.grants[source], min(report.grant, pool.sent + self.flow.window))
        oldest = next(iter(pool.open), None)
        self._acknowledge(pool, source, report)
        self._ask_again(pool, source, report)
        if report.landed > pool.landed[source]:
            pool.landed[source] = report.landed
            self._arm(pool, now, sooner=True)
        if next(iter(pool.open), None) != oldest:
            self._arm(pool, now)
        if not pool.open and not pool.unsent:
            pool.deadline = None
        self._list(pool)
        return True

    def _acknowledge(self, pool: _Pool, source: str, report: Report) -> None:
        done: list[int] = []
        for number, transfer in pool.open.items():
            if transfer.sent < transfer.chunks:
                continue
            if number < report.base or any(first <= number <= last for first, last in report.complete):
                if source in transfer.waiting:
                    transfer.waiting.discard(source)
                    self._acknowledged.append((source, pool.name.kind, transfer.tensor.nbytes))
                if not transfer.waiting:
                    done.append(number)
        for number in done:
            pool.bytes -= pool.open.pop(number).tensor.nbytes

    def _ask_again(self, pool: _Pool, source: str, report: Report) -> None:
        for number, first, last in report.missing:
            transfer = pool.open.get(number)
            if transfer is None or source not in transfer.waiting:
                continue
            for chunk in range(first, min(last + 1, transfer.sent)):
                if chunk not in transfer.again:
                    transfer.again.add(chunk)
                    pool.again.append((transfer, chunk))

    def _arm(self, pool: _Pool, now: float, sooner: bool = False) -> None:
        pool.pause = self.flow.retry
        deadline = now + pool.pause
        pool.deadline = min(deadline, pool.deadline) if sooner and pool.deadline is not None else deadline

    def questions_due(self, now: float) -> Iterator[tuple[str, Status]]:
        """Yield (receiver, question) for pools that made no progress for too long."""
        for pool in self._pools.values():
            if pool.deadline is None or now < pool.deadline:
                continue
            pool.pause = min(pool.pause * 2, self.flow.max_retry)
            pool.deadline = now + pool.pause
            yield from self._questions(pool)

    def reconnected(self, now: float) -> None:
        """The connection is new: whatever was under way may be lost, so ask at once."""
        for pool in self._pools.values():
            if pool.open or pool.unsent:
                self._arm(pool, now)
                pool.deadline = now

    def _questions(self, pool: _Pool) -> Iterator[tuple[str, Status]]:
        begun = pool.next_number - len(pool.unsent) + bool(pool.unsent and pool.unsent[0].sent)
        waiting = set().union(*(t.waiting for t in pool.open.values()))
        if pool.unsent:
            # Out of credit: ask the members whose grant is the lowest, and who may not know anything of us yet.
            lowest = min(pool.grants.values())
            waiting |= {member for member, grant in pool.grants.items() if grant == lowest}
        for member in sorted(waiting):
            self.questions += 1
            yield member, Status(pool.name, self.session, pool.sent, begun)

    def deadline(self) -> float | None:
        """When ``questions_due`` wants to be called next."""
        return min((p.deadline for p in self._pools.values() if p.deadline is not None), default=None)

    def backlog(self, receiver: str | None = None, kind: Kind | None = None) -> int:
        """Bytes of tensors taken and not yet acknowledged by all their receivers."""
        return sum(
            pool.bytes
            for pool in self._pools.values()
            if (receiver is None or receiver in pool.route.members) and (kind is None or kind is pool.name.kind)
        )

    def acknowledged(self) -> list[tuple[str, Kind, int]]:
        """Return (receiver, kind, bytes) of what has been acknowledged since the last call."""
        out, self._acknowledged = self._acknowledged, []
        return out

    def transfers(self) -> int:
        """Tensors taken and not yet acknowledged by all their receivers."""
        return sum(len(pool.open.keys() | {t.number for t in pool.unsent}) for pool in self._pools.values())
