"""Executes a round of a plan in virtual time: the same instruction lists and the same walker as the workers.

Links are shared, first come, first served. Every device has one, up and down at once. Through the broker a tensor
takes its sender's link, the broker's own (both ways, shared by all) and its receiver's; the broker passes a chunk on
only when it has all of it. On a direct network it takes the sender's and the receiver's link alone, and a multicast
leaves the sender once for each receiver. Behind a busy link a tensor queues in the order in which its first byte comes.

A link's thread needs the core that computes: what a device sends or receives while it computes makes that longer.

Samples for the next round travel while this one is computed: they take their part of the links, and a round cannot be
shorter than they need.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from asteroid_coordinator.simulator.trace import Span, Trace, Transfer
from asteroid_core.costs import Costs
from asteroid_core.plan import Plan
from asteroid_core.routing import forward_routes
from asteroid_core.schedule import Instruction, Op, schedule
from asteroid_core.walker import ScheduleWalker

_DONE, _ARRIVED, _HOP = 0, 1, 2


class Stuck(Exception):
    """No event is left and somebody still waits: the plan's schedules do not fit together."""


class _Move:
    """One tensor on its way over the links of its path."""

    __slots__ = ("at", "end", "item", "op", "parts", "path", "sent", "size", "source", "target")

    def __init__(
        self, path: Sequence[int], size: float, source: int, target: int, item: Instruction, op: Op | None, parts: int
    ) -> None:
        self.path, self.size, self.source, self.target = path, size, source, target
        self.item, self.op, self.parts = item, op, parts
        self.at, self.end, self.sent = 0, 0.0, -1.0


def simulate(plan: Plan, costs: Costs, *, record: bool = True) -> Trace:
    """Run one round.

    Args:
        plan: who does what.
        costs: what it costs.
        record: keep spans and transfers; without them only the round time and the peaks are told.

    Raises:
        Stuck: the schedules wait for each other.
    """
    return _World(plan, costs, record).run()


class _World:
    def __init__(self, plan: Plan, costs: Costs, record: bool) -> None:
        self.plan, self.costs, self.record = plan, costs, record
        self.names = plan.devices
        index = {name: i for i, name in enumerate(self.names)}
        count = len(self.names)
        self.of = [costs.by_name[name] for name in self.names]
        self.stage = [number for number, stage in enumerate(plan.stages) for _ in stage.shares]
        self.samples = [share.samples for stage in plan.stages for share in stage.shares]
        self.walkers = [ScheduleWalker(schedule(plan, name)) for name in self.names]
        # Links: up 2i, down 2i + 1 of each device; then the broker's way in and out, then the coordinator's way up.
        network = costs.network
        hub = float("inf") if network.hub_bytes_per_s is None else network.hub_bytes_per_s
        coordinator = costs.feed.bytes_per_s if costs.feed is not None else 1.0
        self.rate = [cost.bytes_per_s for cost in self.of for _ in (0, 1)] + [hub, hub, coordinator]
        self.free = [0.0] * len(self.rate)
        self.load = [0.0] * len(self.rate)
        self.chunk = 0 if network.direct else network.chunk_bytes
        self.through: tuple[int, ...] = ()
        if not network.direct and network.hub_bytes_per_s is not None:
            self.through = (2 * count, 2 * count + 1)
        self.store = 1 if self.through else 0
        """Position in a path after which a chunk has to be whole before it goes on."""
        self.coordinator = 2 * count + 2
        self.forward: list[list[tuple[int, int]]] = [[] for _ in self.names]
        self.backward: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for number in range(len(plan.stages) - 1):
            for route in forward_routes(plan, number):
                a, b, rows = index[route.source], index[route.target], route.hi - route.lo
                self.forward[a].append((b, rows))
                self.backward[b].append((a, rows))
        self.groups = [
            {number: tuple(index[m] for m in members) for number, members in plan.reduction_groups(name)}
            for name in self.names
        ]
        self.feeder = -1
        """Index of the link that the feeder sends on."""
        if costs.feed is not None:
            owner = costs.feed.device
            self.feeder = 2 * index[owner] if owner in index else self.coordinator
        self.wire = [cost.wire_s_per_byte for cost in self.of]
        self.wired = [0.0] * count
        """Until when the thread of each device's link has work."""
        self.owed = [0.0] * count
        """Work of that thread that has come while the device computes."""
        self.missing: dict[tuple[int, Op, int | None], int] = {}
        self.votes = count
        self.vote_s = 0.0
        self.events: list[tuple[float, int, int, object, int]] = []
        self.number = 0
        self.last = 0.0
        self.spans: list[Span] = []
        self.transfers: list[Transfer] = []

    def run(self) -> Trace:
        last_stage = len(self.plan.stages) - 1
        for device, walker in enumerate(self.walkers):
            for micro in range(self.plan.micro_count):
                if self.stage[device] == 0:
                    walker.arrived(Op.RECV_ACT, micro)
                if self.stage[device] == last_stage:
                    walker.arrived(Op.RECV_TARGET, micro)
            if len(self.walkers) == 1:
                walker.arrived(Op.RECV_VOTES)
        for device in range(len(self.walkers)):
            self.advance(device, 0.0)
        events, walkers = self.events, self.walkers
        while events:
            now, _, kind, what, device = heapq.heappop(events)
            if kind == _HOP:
                self.hop(what, now)  # type: ignore[arg-type]
                continue
            if kind == _DONE:
                if self.owed[device]:
                    self.overtime(device, what, now)  # type: ignore[arg-type]
                    continue
                walkers[device].done(what)  # type: ignore[arg-type]
            elif not self.arrive(what, device):  # type: ignore[arg-type]
                continue
            self.advance(device, now)
        waiting = {self.names[i]: w.waiting_for for i, w in enumerate(walkers) if not w.finished}
        if waiting:
            raise Stuck(", ".join(f"{device} waits for {item}" for device, item in waiting.items()))
        self.spans.sort(key=lambda span: (span.start, span.device))
        self.transfers.sort(key=lambda move: (move.start, move.source, move.target))
        return Trace(
            round_s=max(self.last, *self.load),
            spans=tuple(self.spans),
            transfers=tuple(self.transfers),
            peak_alive={self.names[i]: walker.peak for i, walker in enumerate(walkers)},
        )

    def push(self, time: float, kind: int, what: object, device: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, kind, what, device))

    def advance(self, device: int, now: float) -> None:
        """Start whatever may start now."""
        cost = self.of[device]
        for item in self.walkers[device].ready():
            op = item.op
            if op is Op.FORWARD:
                self.compute(device, item, now, cost.forward_s)
                if self.feeder >= 0:
                    self.feed(device, item, now)
            elif op is Op.BACKWARD:
                self.compute(device, item, now, cost.backward_s)
            elif op is Op.SEND_ACT:
                size = self.costs.activation_bytes[item.stage]
                for target, rows in self.forward[device]:
                    parts = len(self.backward[target])
                    self.send(device, target, item, rows * size, Op.RECV_ACT, parts, now)
            elif op is Op.SEND_GRAD:
                size = self.costs.gradient_bytes[item.stage - 1]
                for target, rows in self.backward[device]:
                    parts = len(self.forward[target])
                    self.send(device, target, item, rows * size, Op.RECV_GRAD, parts, now)
            elif op is Op.SEND_SHARD or op is Op.SEND_SUM:
                self.reduce(device, item, now)
            elif op is Op.REDUCE:
                self.compute(device, item, now, 0.0 if item.number else cost.reduce_s)
            elif op is Op.STEP:
                self.compute(device, item, now, cost.step_s)
            elif op is Op.VOTE:
                self.vote(device, now)

    def compute(self, device: int, item: Instruction, now: float, seconds: float) -> None:
        end = now + seconds + max(self.wired[device] - now, 0.0)
        self.wired[device] = now
        self.last = max(self.last, end)
        if self.record:
            self.spans.append(Span(self.names[device], item, now, end))
        self.push(end, _DONE, item, device)

    def overtime(self, device: int, item: Instruction, now: float) -> None:
        """A computation ends later by what its link's thread had to do meanwhile."""
        end = now + self.owed[device]
        self.owed[device] = 0.0
        self.last = max(self.last, end)
        if self.record:
            for number in range(len(self.spans) - 1, -1, -1):
                if self.spans[number].device == self.names[device]:
                    self.spans[number] = replace(self.spans[number], end=end)
                    break
        self.push(end, _DONE, item, device)

    def handles(self, device: int, size: float, now: float) -> None:
        """The thread of a device's link has bytes to move from now on."""
        seconds = size * self.wire[device]
        if seconds and self.walkers[device].busy:
            self.owed[device] += seconds
        elif seconds:
            self.wired[device] = max(self.wired[device], now) + seconds

    def reduce(self, device: int, item: Instruction, now: float) -> None:
        """A shard goes to each other member apart; sums go up once, and the broker multiplies them."""
        number = item.number
        assert number is not None
        members = self.groups[device][number]
        whole = self.costs.reduce_bytes[item.stage] if number == 0 else self.costs.tie_bytes[number - 1]
        at = members.index(device)
        # A link takes its receivers in turn, chunk by chunk; each sender beginning with its neighbour comes closest.
        others = [*members[at + 1 :], *members[:at]]
        op = Op.RECV_SHARD if item.op is Op.SEND_SHARD else Op.RECV_SUM
        size = whole / len(members)
        if item.op is Op.SEND_SHARD or self.costs.network.direct:
            for member in others:
                self.send(device, member, item, size, op, len(others), now)
        else:
            self.multicast(device, others, item, size, op, now)

    def vote(self, device: int, now: float) -> None:
        """A vote is small, but leaves after what its sender has sent before; everybody waits for the last one."""
        self.vote_s = max(self.vote_s, now, self.free[2 * device])
        self.votes -= 1
        if self.votes or len(self.names) == 1:
            return
        slowest = max(cost.message_s for cost in self.of)
        for other in range(len(self.names)):
            move = _Move((), 0.0, device, other, Instruction(self.stage[other], Op.VOTE), Op.RECV_VOTES, 1)
            self.push(max(self.vote_s, self.free[2 * other + 1]) + slowest, _ARRIVED, move, other)

    def feed(self, device: int, item: Instruction, now: float) -> None:
        """Where samples are consumed, those of the next round may come."""
        feed = self.costs.feed
        assert feed is not None
        size = 0.0
        if item.stage == 0:
            size += feed.sample_bytes
        if item.stage == len(self.plan.stages) - 1:
            size += feed.target_bytes
        if size and 2 * device != self.feeder:
            path = (self.feeder, *self.through, 2 * device + 1)
            self.hop(_Move(path, size * self.samples[device], -1, device, item, None, 0), now)

    def send(self, source: int, target: int, item: Instruction, size: float, op: Op, parts: int, now: float) -> None:
        self.handles(source, size, now)
        path = (2 * source, *self.through, 2 * target + 1)
        self.hop(_Move(path, size, source, target, item, op, parts), now)

    def multicast(
        self, source: int, targets: Sequence[int], item: Instruction, size: float, op: Op, now: float
    ) -> None:
        """Up once; then the broker sends it down once for each receiver."""
        self.handles(source, size, now)
        whole = _Move((2 * source, *self.through[:1]), size, source, source, item, None, 0)
        self.hop(whole, now)
        start = whole.sent + min(size, self.chunk) / self.rate[2 * source]
        for target in targets:
            down = _Move((*self.through[1:], 2 * target + 1), size, source, target, item, op, len(targets))
            down.end, down.sent = whole.end, whole.sent
            self.push(start, _HOP, down, target)

    def hop(self, move: _Move, now: float) -> None:
        """Queue a tensor on the next links of its path; where it has to wait, it goes on at its turn."""
        free, path, size = self.free, move.path, move.size
        at, last = move.at, len(path) - 1
        while True:
            link = path[at]
            seconds = size / self.rate[link]
            start = free[link] if free[link] > now else now
            free[link] = start + seconds
            self.load[link] += seconds
            if move.sent < 0:
                move.sent = start
            move.end = max(move.end, start + seconds)
            if at == last:
                if move.op is not None:
                    self.handles(move.target, size, start)
                break
            at += 1
            if at - 1 == self.store and self.chunk and move.op is not None:
                held = min(size, self.chunk)
                start += held / self.rate[link]
                move.end += held / self.rate[path[at]]
            if start > now:
                move.at = at
                self.push(start, _HOP, move, move.target)
                return
            now = start
        self.delivered(move)

    def delivered(self, move: _Move) -> None:
        if move.op is None:
            return
        target = move.target
        end = move.end + (self.of[move.source].message_s + self.of[target].message_s) / 2
        if self.record:
            self.transfers.append(Transfer(self.names[move.source], self.names[target], move.item, move.sent, end))
        self.push(end, _ARRIVED, move, target)

    def arrive(self, move: _Move, device: int) -> bool:
        """Note a part of what a device needs; True if it is all there and the device waits for just that."""
        op, number = move.op, move.item.number
        assert op is not None
        if move.parts > 1:
            key = (device, op, number)
            left = self.missing.get(key, move.parts) - 1
            self.missing[key] = left
            if left:
                return False
        walker = self.walkers[device]
        walker.arrived(op, number)
        waits = walker.waiting_for
        return waits is not None and waits.op is op and waits.number == number
