"""Executes a round of a plan in virtual time: the same instruction lists and the same walker as the workers.

Every device has one link to the broker, up and down at once. Tensors queue on the way up in the order in which they are
sent, and on the way down in the order in which their first byte reaches the broker; they stream through it, so on idle
links both halves take place at once. Samples are taken to be there in time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from asteroid_coordinator.simulator.trace import Span, Trace, Transfer
from asteroid_core.costs import Costs
from asteroid_core.plan import Plan
from asteroid_core.routing import incoming, outgoing
from asteroid_core.schedule import Instruction, Op, schedule
from asteroid_core.walker import ScheduleWalker

Key = tuple[str, Op, int | None]
"""(device, what it waits for, number)"""


@dataclass(frozen=True)
class _AtBroker:
    """The first byte of a tensor is at the broker and queues for the receiver's downlink."""

    source: str
    item: Instruction
    sent: float
    seconds: float
    wait: Key


class Stuck(Exception):
    """No event is left and somebody still waits: the plan's schedules do not fit together."""


@dataclass
class _World:
    plan: Plan
    costs: Costs
    walkers: dict[str, ScheduleWalker]
    up: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    down: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    missing: dict[Key, int] = field(default_factory=dict)
    events: list[tuple[float, int, str, Key | Instruction | _AtBroker]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    counter: itertools.count[int] = field(default_factory=itertools.count)


def simulate(plan: Plan, costs: Costs) -> Trace:
    """Run one round.

    Raises:
        Stuck: the schedules wait for each other.
    """
    world = _World(plan, costs, {device: ScheduleWalker(schedule(plan, device)) for device in plan.devices})
    for device in plan.devices:
        _feed(world, device)
    for device in plan.devices:
        _advance(world, device, 0.0)
    now = 0.0
    while world.events:
        now, _, device, what = heapq.heappop(world.events)
        walker = world.walkers[device]
        if isinstance(what, _AtBroker):
            _deliver(world, what, now)
            continue
        if isinstance(what, Instruction):
            walker.done(what)
        else:
            _, op, number = what
            world.missing[what] -= 1
            if world.missing[what]:
                continue
            walker.arrived(op, number)
        _advance(world, device, now)
    waiting = {device: w.waiting_for for device, w in world.walkers.items() if not w.finished}
    if waiting:
        raise Stuck(", ".join(f"{device} waits for {item}" for device, item in waiting.items()))
    return Trace(
        round_s=max((span.end for span in world.spans), default=now),
        spans=tuple(sorted(world.spans, key=lambda span: (span.start, span.device))),
        transfers=tuple(sorted(world.transfers, key=lambda move: (move.start, move.source, move.target))),
        peak_alive={device: walker.peak for device, walker in world.walkers.items()},
    )


def _feed(world: _World, device: str) -> None:
    """Samples and targets are there before they are asked for."""
    plan, stage = world.plan, world.plan.stage_of(device)
    for micro in range(plan.micro_count):
        if stage == 0:
            world.walkers[device].arrived(Op.RECV_ACT, micro)
        if stage == len(plan.stages) - 1:
            world.walkers[device].arrived(Op.RECV_TARGET, micro)
    if len(plan.devices) == 1:
        world.walkers[device].arrived(Op.RECV_VOTES)


def _advance(world: _World, device: str, now: float) -> None:
    """Start whatever may start now."""
    for item in world.walkers[device].ready():
        seconds = _seconds(world, device, item)
        if seconds is not None:
            world.spans.append(Span(device, item, now, now + seconds))
            heapq.heappush(world.events, (now + seconds, next(world.counter), device, item))
        else:
            _send(world, device, item, now)


def _seconds(world: _World, device: str, item: Instruction) -> float | None:
    """Duration of a computation; None for what is none."""
    cost = next(c for c in world.costs.devices if c.device == device)
    match item.op:
        case Op.FORWARD:
            return cost.forward_s
        case Op.BACKWARD:
            return cost.backward_s
        case Op.STEP:
            return cost.step_s
        case Op.REDUCE:
            return 0.0
        case _:
            return None


def _send(world: _World, device: str, item: Instruction, now: float) -> None:
    plan, costs, stage = world.plan, world.costs, item.stage
    number = item.number
    match item.op:
        case Op.SEND_ACT:
            routes = outgoing(plan, device)
            for route in routes:
                size = (route.hi - route.lo) * costs.activation_bytes[stage]
                wait = (route.target, Op.RECV_ACT, number)
                _transfer(world, device, item, size, wait, len(incoming(plan, route.target)), now)
        case Op.SEND_GRAD:
            for route in incoming(plan, device):
                size = (route.hi - route.lo) * costs.gradient_bytes[stage - 1]
                wait = (route.source, Op.RECV_GRAD, number)
                _transfer(world, device, item, size, wait, len(outgoing(plan, route.source)), now)
        case Op.SEND_SHARD | Op.SEND_SUM:
            assert number is not None
            members = dict(plan.reduction_groups(device))[number]
            whole = costs.reduce_bytes[stage] if number == 0 else costs.tie_bytes[number - 1]
            op = Op.RECV_SHARD if item.op is Op.SEND_SHARD else Op.RECV_SUM
            _to_all(world, device, item, whole / len(members), members, op, now)
        case Op.VOTE:
            _to_all(world, device, item, 0.0, plan.devices, Op.RECV_VOTES, now)
        case _:
            return  # FREE takes no time


def _to_all(
    world: _World, device: str, item: Instruction, size: float, members: tuple[str, ...], op: Op, now: float
) -> None:
    """A shard goes to each other member apart; sums and votes go up once, the broker multiplies them."""
    once = item.op is not Op.SEND_SHARD
    first = True
    for member in members:
        if member != device:
            wait = (member, op, item.number)
            _transfer(world, device, item, size, wait, len(members) - 1, now, uplink=first or not once)
            first = False


def _transfer(
    world: _World,
    source: str,
    item: Instruction,
    size: float,
    wait: Key,
    parts: int,
    now: float,
    uplink: bool = True,
) -> None:
    seconds = size / world.costs.bytes_per_s
    start = max(now, world.up[source]) if uplink else max(now, world.up[source] - seconds)
    if uplink:
        world.up[source] = start + seconds
    world.missing.setdefault(wait, parts)
    heapq.heappush(world.events, (start, next(world.counter), wait[0], _AtBroker(source, item, start, seconds, wait)))


def _deliver(world: _World, move: _AtBroker, now: float) -> None:
    """Send a tensor down to its receiver, after those that were at the broker before it."""
    target = move.wait[0]
    world.down[target] = max(now, world.down[target]) + move.seconds
    end = world.down[target] + world.costs.message_s
    world.transfers.append(Transfer(move.source, target, move.item, move.sent, end))
    heapq.heappush(world.events, (end, next(world.counter), target, move.wait))
