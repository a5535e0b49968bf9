"""What has arrived, and whether it is all that an instruction waits for. Pure: no link, no clock.

For each wait of a pass the mailbox knows which parts must come and from whom (plan and routing decide). A part from
anybody else, or of another shape, is refused by name; parts of later passes are kept until their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from asteroid_core.errors import WireError
from asteroid_core.plan import Plan
from asteroid_core.program import Port
from asteroid_core.routing import clip, incoming, outgoing
from asteroid_core.schedule import Op
from asteroid_core.wire.tensor import Kind, Tag

Part = TypeVar("Part")

KIND_OF = {
    Kind.FEED: Op.RECV_ACT,
    Kind.ACT: Op.RECV_ACT,
    Kind.TARGET: Op.RECV_TARGET,
    Kind.GRAD: Op.RECV_GRAD,
    Kind.REDUCE: Op.RECV_SHARD,
    Kind.GATHER: Op.RECV_SUM,
    Kind.VOTE: Op.RECV_VOTES,
}
"""The wait that a tensor of each kind serves."""


@dataclass(frozen=True)
class Expected:
    """One part of a wait: who sends it, which tensor, and its shape (None: decided by the reduction)."""

    source: str
    index: int
    kind: Kind
    rows: int | None = None
    port: Port | None = None


@dataclass(frozen=True)
class PassKey:
    """One pass over the schedule: training round r (phase 0), or the validation after it (phase 1)."""

    phase: int
    round: int


class Expectations:
    """Which parts each wait of a pass needs; a function of plan, device and program ports."""

    def __init__(
        self, plan: Plan, device: str, inputs: Sequence[Port], outputs: Sequence[Port], data_owner: str
    ) -> None:
        self._plan, self._device, self._owner = plan, device, data_owner
        self._inputs, self._outputs = inputs, outputs
        self._stage = plan.stage_of(device)
        self._groups = dict(plan.reduction_groups(device))

    def parts(self, op: Op, number: int | None, rows: int) -> tuple[Expected, ...]:
        """Return the parts that ``op`` and ``number`` waits for, in the order in which they are joined.

        Args:
            op: a wait.
            number: micro-batch or reduction group.
            rows: samples of that whole micro-batch.
        """
        plan, me = self._plan, self._device
        if op is Op.RECV_ACT and self._stage == 0:
            lo, hi = clip(plan.stages[0], rows)[me]
            return tuple(Expected(self._owner, i, Kind.FEED, hi - lo, p) for i, p in enumerate(self._inputs))
        if op is Op.RECV_ACT:
            return tuple(
                Expected(r.source, i, Kind.ACT, r.hi - r.lo, p)
                for i, p in enumerate(self._inputs)
                for r in incoming(plan, me, rows)
            )
        if op is Op.RECV_TARGET:
            lo, hi = clip(plan.stages[self._stage], rows)[me]
            return (Expected(self._owner, 0, Kind.TARGET, hi - lo), Expected(self._owner, 1, Kind.TARGET, 1))
        if op is Op.RECV_GRAD:
            return tuple(
                Expected(r.target, i, Kind.GRAD, r.hi - r.lo, p)
                for i, p in enumerate(self._outputs)
                if p.grad
                for r in outgoing(plan, me, rows)
            )
        if op is Op.RECV_VOTES:
            return tuple(Expected(d, 0, Kind.VOTE, 1) for d in plan.devices if d != me)
        if op in (Op.RECV_SHARD, Op.RECV_SUM) and number is not None:
            kind = Kind.REDUCE if op is Op.RECV_SHARD else Kind.GATHER
            return tuple(Expected(d, 0, kind) for d in self._groups[number] if d != me)
        raise ValueError(f"{op.value} does not wait")


@dataclass
class Mailbox(Generic[Part]):
    """Parts by pass, wait and number; ``Part`` is whatever carries the bytes."""

    _parts: dict[tuple[PassKey, Op, int], dict[tuple[str, int], Part]] = field(default_factory=dict)

    def put(self, source: str, tag: Tag, part: Part) -> tuple[PassKey, Op, int]:
        """File a part; one that is already there is kept.

        Raises:
            WireError: the kind serves no wait.
        """
        op = KIND_OF.get(tag.kind)
        if op is None:
            raise WireError(f"{source} sent a {tag.kind.value}, which no instruction waits for.")
        key = (PassKey(tag.phase, tag.round), op, tag.micro)
        self._parts.setdefault(key, {}).setdefault((source, tag.index), part)
        return key

    def missing(self, key: PassKey, op: Op, number: int | None, expected: Sequence[Expected]) -> tuple[str, ...]:
        """Return who has not yet sent all that is expected, in the order of ``expected``."""
        have = self._parts.get((key, op, number or 0), {})
        return tuple(dict.fromkeys(e.source for e in expected if (e.source, e.index) not in have))

    def take(
        self, key: PassKey, op: Op, number: int | None, expected: Sequence[Expected]
    ) -> list[tuple[Expected, Part]]:
        """Remove and return the parts of a wait in their expected order.

        Raises:
            WireError: somebody sent a part that is not expected; named.
        """
        have = self._parts.pop((key, op, number or 0), {})
        out = [(e, have.pop((e.source, e.index))) for e in expected]
        if have:
            source, index = next(iter(have))
            raise WireError(f"{source} sent part {index} of {op.value}{number}, which is not expected from it.")
        return out

    def held(self, key: tuple[PassKey, Op, int]) -> list[Part]:
        """Return the parts of a wait that are here already."""
        return list(self._parts.get(key, {}).values())

    def clear(self) -> list[Part]:
        """Forget everything (a new generation); returns what was held."""
        held = [part for parts in self._parts.values() for part in parts.values()]
        self._parts.clear()
        return held

    def __len__(self) -> int:
        return sum(len(parts) for parts in self._parts.values())
