"""From a structure (layers and devices of each stage) to a plan: shares by Algorithm 1, K, ties, memory check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asteroid_coordinator.planner.allocate import allocate
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_core.plan import Order, Plan, Share, Stage

Divide = Callable[[Problem, Sequence[Site], int, int, int, int], tuple[int, ...] | None]
"""(problem, group, lo, hi, micro, alive) to samples, see ``allocate``."""


@dataclass(frozen=True)
class Piece:
    """A stage without shares.

    Attributes:
        lo: first layer.
        hi: one past the last layer.
        devices: names of its group.
        warm_up: K.
    """

    lo: int
    hi: int
    devices: tuple[str, ...]
    warm_up: int


def draft(
    problem: Problem,
    pieces: Sequence[Piece],
    micro: int,
    *,
    planner: str = "asteroid",
    order: Order | None = None,
    divide: Divide = allocate,
) -> Plan | None:
    """Return the plan of a structure, or None if some device's memory does not suffice or one is missing that must not.

    Devices that get no sample are left out.

    Args:
        problem: times and memory.
        pieces: stages.
        micro: samples of a micro-batch; divides the batch.
        planner: who made it.
        order: of work; default: the job's.
        divide: how a micro-batch is divided among a group.
    """
    if not problem.needed <= {name for piece in pieces for name in piece.devices}:
        return None
    micros = problem.wishes.batch // micro
    order = order or problem.wishes.order
    stages = []
    for piece in pieces:
        alive = micros if order == "gpipe" else min(piece.warm_up, micros)
        group = tuple(piece.devices)
        while True:
            key = (divide, group, piece.lo, piece.hi, micro, alive)
            if key not in problem.divided:
                sites = [problem.site[name] for name in group]
                problem.divided[key] = divide(problem, sites, piece.lo, piece.hi, micro, alive)
            shares = problem.divided[key]
            if shares is None:
                return None
            used = tuple(name for name, samples in zip(group, shares, strict=True) if samples)
            if used == group:
                break
            group = used  # fewer replicas hold less memory for the reduction: divide again
        stages.append(
            Stage.model_construct(
                lo=piece.lo,
                hi=piece.hi,
                shares=tuple(
                    Share.model_construct(device=name, samples=n) for name, n in zip(group, shares, strict=True)
                ),
                warm_up=min(piece.warm_up, micros),
                backups=(),
            )
        )
    return assemble(problem, stages, micro, planner, order)


def assemble(problem: Problem, stages: Sequence[Stage], micro: int, planner: str, order: Order) -> Plan:
    """Put stages together; checked, since every planner ends here."""
    return Plan(
        generation=1,
        stages=tuple(stages),
        micro_size=micro,
        micro_count=problem.wishes.batch // micro,
        order=order,
        ties=problem.ties([(stage.lo, stage.hi) for stage in stages]),
        planner=planner,
    )


def pieces_of(plan: Plan) -> list[Piece]:
    """The structure of a plan."""
    return [Piece(stage.lo, stage.hi, stage.devices, stage.warm_up) for stage in plan.stages]


def warm_ups(pieces: Sequence[tuple[int, int, tuple[str, ...]]], wide: bool) -> list[Piece]:
    """Give each stage its K: 2 (P - p) - 1, or P - p (Asteroid; DAPPLE's policies B and A)."""
    count = len(pieces)
    return [
        Piece(lo, hi, devices, 2 * (count - n) - 1 if wide else count - n) for n, (lo, hi, devices) in enumerate(pieces)
    ]
