"""The order of work of one device in one round: a list of instructions, and the only place that decides it.

Passes, each list in and list out: the compute order (1F1B or GPipe), then transfers, then FREE, then the end of the
round (reduce, vote, step). The text form (``2F0`` is stage 2, forward, micro-batch 0) is used in logs, errors, traces
and golden files. ``walker.ScheduleWalker`` is the only interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from asteroid_core.plan import Plan
from asteroid_core.routing import clip


class Op(str, Enum):
    """What an instruction does; the value is its text form. The number is a micro-batch or a reduction group."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and walkers look up operations all the time

    RECV_ACT = "RA"
    """wait for a micro-batch's inputs (from the previous stage, or the feeder)"""
    RECV_TARGET = "RT"
    """wait for a micro-batch's targets (last stage)"""
    FORWARD = "F"
    SEND_ACT = "SA"
    RECV_GRAD = "RG"
    BACKWARD = "B"
    SEND_GRAD = "SG"
    FREE = "X"
    """drop a micro-batch's activations"""
    SEND_SHARD = "SS"
    """send every other member its slice of my gradients (reduce-scatter)"""
    RECV_SHARD = "RS"
    REDUCE = "R"
    """add the slices of my part, in device order"""
    SEND_SUM = "SC"
    """multicast my reduced part (gather)"""
    RECV_SUM = "RC"
    VOTE = "V"
    """tell everybody that I hold my reduced gradients"""
    RECV_VOTES = "RV"
    STEP = "O"


WAITS = frozenset({Op.RECV_ACT, Op.RECV_TARGET, Op.RECV_GRAD, Op.RECV_SHARD, Op.RECV_SUM, Op.RECV_VOTES})
SENDS = frozenset({Op.SEND_ACT, Op.SEND_GRAD, Op.SEND_SHARD, Op.SEND_SUM, Op.VOTE})
COMPUTES = frozenset({Op.FORWARD, Op.BACKWARD, Op.REDUCE, Op.STEP})

_TEXT = re.compile(r"(\d+)([A-Z]+)(\d*)")


@dataclass(frozen=True)
class Instruction:
    """One piece of work of one stage: for a micro-batch, for a reduction group, or (V, RV, O) for the round."""

    stage: int
    op: Op
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.op.value}{'' if self.number is None else self.number}"

    @classmethod
    def parse(cls, text: str) -> Instruction:
        """Read the text form.

        Raises:
            ValueError: not an instruction.
        """
        found = _TEXT.fullmatch(text)
        if found is None or found[2] not in {op.value for op in Op}:
            raise ValueError(f"not an instruction: {text!r}; expected for example 2F0")
        return cls(int(found[1]), Op(found[2]), int(found[3]) if found[3] else None)


Compute = list[tuple[Op, int]]


def one_f_one_b(micros: int, warm_up: int) -> Compute:
    """1F1B: ``warm_up`` forwards, then a backward and a forward in turn (Asteroid, HPP round)."""
    ahead = min(warm_up, micros)
    out: Compute = [(Op.FORWARD, m) for m in range(ahead)]
    for m in range(micros):
        out.append((Op.BACKWARD, m))
        if m + ahead < micros:
            out.append((Op.FORWARD, m + ahead))
    return out


def gpipe(micros: int, warm_up: int) -> Compute:
    """GPipe: all forwards, then all backwards; every micro-batch's activations are alive at the turn."""
    del warm_up
    return [(Op.FORWARD, m) for m in range(micros)] + [(Op.BACKWARD, m) for m in range(micros)]


ORDERS: dict[str, Callable[[int, int], Compute]] = {"1f1b": one_f_one_b, "gpipe": gpipe}


def add_transfers(compute: Compute, stage: int, stages: int) -> list[Instruction]:
    """Put each receive before, and each send after, the computation that needs or makes the data."""
    out: list[Instruction] = []
    first, last = stage == 0, stage == stages - 1
    for op, m in compute:
        if op is Op.FORWARD:
            out.append(Instruction(stage, Op.RECV_ACT, m))
            if last:
                out.append(Instruction(stage, Op.RECV_TARGET, m))
            out.append(Instruction(stage, op, m))
            if not last:
                out.append(Instruction(stage, Op.SEND_ACT, m))
        else:
            if not last:
                out.append(Instruction(stage, Op.RECV_GRAD, m))
            out.append(Instruction(stage, op, m))
            if not first:
                out.append(Instruction(stage, Op.SEND_GRAD, m))
    return out


def add_free(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Say when a micro-batch's activations die: right after its backward."""
    out: list[Instruction] = []
    for item in instructions:
        out.append(item)
        if item.op is Op.BACKWARD:
            out.append(Instruction(item.stage, Op.FREE, item.number))
    return out


def round_end(stage: int, groups: Sequence[int]) -> list[Instruction]:
    """Reduce in every group, vote, step.

    All shards leave before anything is waited for, so groups that overlap (tied weights) cannot wait in a circle.
    Nobody steps before every worker of the plan holds its reduced gradients: that is what the votes are for.
    """
    return [
        *(Instruction(stage, Op.SEND_SHARD, g) for g in groups),
        *(
            Instruction(stage, op, g)
            for g in groups
            for op in (Op.RECV_SHARD, Op.REDUCE, Op.SEND_SUM)
        ),
        *(Instruction(stage, Op.RECV_SUM, g) for g in groups),
        Instruction(stage, Op.VOTE),
        Instruction(stage, Op.RECV_VOTES),
        Instruction(stage, Op.STEP),
    ]  # fmt: skip


def schedule(plan: Plan, device: str) -> list[Instruction]:
    """Return what ``device`` does in one training round, in order."""
    stage = plan.stage_of(device)
    groups = tuple(number for number, _ in plan.reduction_groups(device))
    return list(_round(plan.order, plan.micro_count, plan.stages[stage].warm_up, stage, len(plan.stages), groups))


@lru_cache(maxsize=4096)
def _round(
    order: str, micros: int, warm_up: int, stage: int, stages: int, groups: tuple[int, ...]
) -> tuple[Instruction, ...]:
    """A planner asks for the rounds of thousands of plans, which differ in little."""
    body = add_free(add_transfers(ORDERS[order](micros, warm_up), stage, stages))
    return (*body, *round_end(stage, groups))


def forward_schedule(plan: Plan, device: str, rows: Sequence[int]) -> list[Instruction]:
    """Return what ``device`` does in a validation: forwards only.

    Args:
        plan: the plan in force.
        device: its name.
        rows: samples of each micro-batch; a micro-batch in which the device has no row is left out.
    """
    stage, stages = plan.stage_of(device), len(plan.stages)
    mine: Compute = [(Op.FORWARD, m) for m, n in enumerate(rows) if device in clip(plan.stages[stage], n)]
    out: list[Instruction] = []
    for item in add_transfers(mine, stage, stages):
        out.append(item)
        if item.op is Op.SEND_ACT or (item.op is Op.FORWARD and stage == stages - 1):
            out.append(Instruction(stage, Op.FREE, item.number))
    return out


def text(instructions: Sequence[Instruction]) -> str:
    """The text form of a whole list, separated by blanks."""
    return " ".join(map(str, instructions))
