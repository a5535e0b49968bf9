"""Random plans, and a network without a broker that runs their schedules in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from asteroid_core.plan import Plan, Share, Stage, Tie
from asteroid_core.routing import clip, incoming, outgoing
from asteroid_core.schedule import COMPUTES, Instruction, Op
from asteroid_core.walker import ScheduleWalker


def random_plan(random: Random) -> Plan:
    """Any legal plan of up to five stages, groups of up to three, with ties and any K."""
    count = random.randint(1, 5)
    micro = random.randint(1, 8)
    names = iter("abcdefghijklmno")
    stages, at = [], 0
    micros = random.randint(1, 12)
    warm_ups = sorted((random.randint(1, 2 * count + 1) for _ in range(count)), reverse=True)
    for number in range(count):
        group = random.randint(1, min(3, micro))
        cuts = sorted(random.sample(range(1, micro), group - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, micro], strict=True)]
        layers = random.randint(1, 3)
        stages.append(
            Stage(
                lo=at,
                hi=at + layers,
                shares=tuple(Share(device=next(names), samples=size) for size in sizes),
                warm_up=warm_ups[number],
            )
        )
        at += layers
    ties = [
        Tie(name=f"w{i}", stages=tuple(sorted(random.sample(range(count), random.randint(2, count)))))
        for i in range(random.randint(0, 2) if count > 1 else 0)
    ]
    return Plan(
        generation=1,
        stages=tuple(stages),
        micro_size=micro,
        micro_count=micros,
        order=random.choice(["1f1b", "gpipe"]),
        ties=tuple(ties),
    )


@dataclass
class Lossless:
    """Delivers what walkers send, one message at a time, in an order that ``random`` chooses.

    Attributes:
        plan: who sends to whom.
        rows: samples of each micro-batch.
        walkers: one a device.
        random: chooses who goes on and what arrives.
        done: instructions of each device, in the order in which they were carried out.
        sent: messages by (sender, receiver, what for, number).
        left: parts that each wait still needs.
        reduced: devices that hold all their reduced gradients.
    """

    plan: Plan
    rows: Sequence[int]
    walkers: dict[str, ScheduleWalker]
    random: Random
    done: dict[str, list[Instruction]] = field(default_factory=dict)
    sent: Counter[tuple[str, str, Op, int | None]] = field(default_factory=Counter)
    left: dict[tuple[str, Op, int | None], int] = field(default_factory=dict)
    early_step: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run until nothing moves any more."""
        flying: list[tuple[str, str, Op, int | None]] = []
        running: list[tuple[str, Instruction]] = []
        votes: set[str] = set()
        for device in self.plan.devices:
            self._fed(device)
        moved = True
        while moved:
            moved = False
            for device in self.random.sample(self.plan.devices, len(self.plan.devices)):
                for item in self.walkers[device].ready():
                    moved = True
                    self.done.setdefault(device, []).append(item)
                    flying += self._messages(device, item)
                    if item.op is Op.VOTE:
                        votes.add(device)
                    if item.op is Op.STEP and len(votes) < len(self.plan.devices):
                        self.early_step.append(device)
                    if item.op in COMPUTES:
                        running.append((device, item))
            if running and (not flying or self.random.random() < 0.5):
                device, item = running.pop(self.random.randrange(len(running)))
                self.walkers[device].done(item)
                moved = True
            elif flying:
                self._arrive(flying.pop(self.random.randrange(len(flying))))
                moved = True

    def _fed(self, device: str) -> None:
        stage = self.plan.stage_of(device)
        for micro, rows in enumerate(self.rows):
            if device not in clip(self.plan.stages[stage], rows):
                continue
            if stage == 0:
                self.walkers[device].arrived(Op.RECV_ACT, micro)
            if stage == len(self.plan.stages) - 1:
                self.walkers[device].arrived(Op.RECV_TARGET, micro)
        if len(self.plan.devices) == 1:
            self.walkers[device].arrived(Op.RECV_VOTES)

    def _messages(self, device: str, item: Instruction) -> list[tuple[str, str, Op, int | None]]:
        number = item.number
        samples = self.rows[number] if item.op in (Op.SEND_ACT, Op.SEND_GRAD) and number is not None else 0
        groups = dict(self.plan.reduction_groups(device))
        targets: Callable[[], list[str]] = {
            Op.SEND_ACT: lambda: [r.target for r in outgoing(self.plan, device, samples)],
            Op.SEND_GRAD: lambda: [r.source for r in incoming(self.plan, device, samples)],
            Op.SEND_SHARD: lambda: [m for m in groups[number or 0] if m != device],
            Op.SEND_SUM: lambda: [m for m in groups[number or 0] if m != device],
            Op.VOTE: lambda: [d for d in self.plan.devices if d != device],
        }.get(item.op, list)
        waits = {
            Op.SEND_ACT: Op.RECV_ACT,
            Op.SEND_GRAD: Op.RECV_GRAD,
            Op.SEND_SHARD: Op.RECV_SHARD,
            Op.SEND_SUM: Op.RECV_SUM,
            Op.VOTE: Op.RECV_VOTES,
        }
        out = [(device, target, waits[item.op], number) for target in targets()]
        self.sent.update(out)
        return out

    def _arrive(self, message: tuple[str, str, Op, int | None]) -> None:
        _, target, op, number = message
        key = (target, op, number)
        self.left.setdefault(key, self._parts(target, op, number))
        self.left[key] -= 1
        assert self.left[key] >= 0, f"{key} got more than it waits for"
        if not self.left[key]:
            self.walkers[target].arrived(op, number)

    def _parts(self, device: str, op: Op, number: int | None) -> int:
        if op is Op.RECV_ACT:
            return len(incoming(self.plan, device, self.rows[number or 0]))
        if op is Op.RECV_GRAD:
            return len(outgoing(self.plan, device, self.rows[number or 0]))
        if op is Op.RECV_VOTES:
            return len(self.plan.devices) - 1
        return len(dict(self.plan.reduction_groups(device))[number or 0]) - 1
