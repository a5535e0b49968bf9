"""Planners side by side on one case: a model, a cluster, a batch. Shared by the command and the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asteroid_coordinator.catalog.environments import DEFAULT_BATCH, SGD, Cluster
from asteroid_coordinator.catalog.naming import unknown
from asteroid_coordinator.catalog.work import ModelWork
from asteroid_coordinator.planner.compare import NAMES, Verdict, evaluate
from asteroid_core.plan import Plan
from asteroid_core.spec import OptimizerSpec

EXHAUSTIVE = "exhaustive"
"""Only for a few layers on a few devices, so that it is never a default."""

PLANNERS: tuple[str, ...] = tuple(name for name in NAMES if name != EXHAUSTIVE)
"""Planners of a comparison unless others are named; the first is what the others are compared with."""


@dataclass(frozen=True)
class Case:
    """What the planners are asked.

    Attributes:
        model: to train.
        cluster: on which devices.
        batch: samples of a round.
        optimizer: of the round.
        micro_sizes: allowed micro-batches; None: the catalog's.
    """

    model: ModelWork
    cluster: Cluster
    batch: int = DEFAULT_BATCH
    optimizer: OptimizerSpec = SGD
    micro_sizes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.model.name} on {self.cluster.id} at {self.cluster.mbit:g} Mbit/s"


@dataclass(frozen=True)
class Row:
    """One planner's answer.

    Attributes:
        verdict: what it planned and what that comes to.
        batch: samples of a round.
        speed_up: how many times as fast the first planner is; None if one of them fits nowhere.
    """

    verdict: Verdict
    batch: int
    speed_up: float | None

    @property
    def planner(self) -> str:
        """Its name."""
        return self.verdict.planner

    @property
    def samples_per_s(self) -> float | None:
        """Throughput; None if nothing fits."""
        return self.batch / self.verdict.round_s if self.verdict.round_s else None

    @property
    def fullest(self) -> tuple[str, float, float] | None:
        """The device that uses most of what it lends: name, megabytes needed, megabytes lent."""
        memory = self.verdict.memory
        if not memory:
            return None
        device = max(memory, key=lambda name: memory[name][0] / memory[name][1])
        return (device, *memory[device])

    @property
    def busy(self) -> float | None:
        """Part of the round that the devices of the (first) plan compute, on average."""
        trace = self.verdict.trace
        if trace is None or not self.verdict.plans:
            return None
        devices = self.verdict.plans[0].devices
        return sum(trace.busy(device) for device in devices) / len(devices)


def compare(case: Case, planners: Sequence[str] = PLANNERS, tell: Callable[[str], None] | None = None) -> list[Row]:
    """Ask each planner, simulate each answer, and set the first against the others.

    Args:
        case: what to plan.
        planners: names.
        tell: is called with the name of each planner before it begins.

    Raises:
        InputError: there is no such planner, or the case is too large for it.
    """
    check_planners(planners)
    problem = case.cluster.problem(case.model, case.batch, case.optimizer, case.micro_sizes)
    verdicts = []
    for planner in planners:
        if tell is not None:
            tell(planner)
        verdicts.append(evaluate(problem, planner))
    first = verdicts[0].round_s
    return [
        Row(verdict, case.batch, verdict.round_s / first if first and verdict.round_s else None) for verdict in verdicts
    ]


def check_planners(planners: Sequence[str]) -> None:
    """Refuse names of planners that do not exist.

    Raises:
        InputError: names the first one.
    """
    for planner in planners:
        if planner not in NAMES:
            raise unknown("planner", planner, NAMES)


def plan_text(plan: Plan, cluster: Cluster) -> str:
    """Stages by the kinds of their devices: ``nx | 2 tx2 | nano``."""
    short = {machine.name: machine.kind.short for machine in cluster.machines}
    stages = []
    for stage in plan.stages:
        counts: dict[str, int] = {}
        for device in stage.devices:
            counts[short[device]] = counts.get(short[device], 0) + 1
        stages.append("+".join(kind if count == 1 else f"{count} {kind}" for kind, count in counts.items()))
    return " | ".join(stages)


def plans_text(verdict: Verdict, cluster: Cluster) -> str:
    """The plan, or pipelines side by side: ``nx | nano && tx2 | nano``."""
    return " && ".join(plan_text(plan, cluster) for plan in verdict.plans)


def micro_text(verdict: Verdict) -> str:
    """Micro-batches of the (first) plan: ``4 x 64``."""
    return f"{verdict.plans[0].micro_count} x {verdict.plans[0].micro_size}" if verdict.plans else "-"


def facts(case: Case, rows: Sequence[Row]) -> dict[str, Any]:
    """A case for programs."""
    cluster = case.cluster
    return {
        "model": case.model.name,
        "environment": cluster.id,
        "devices": {machine.name: machine.kind.id for machine in cluster.machines},
        "mbit": cluster.mbit,
        "network": cluster.network,
        "hub_mbit": None if cluster.network == "direct" else cluster.hub_mbit or cluster.mbit,
        "batch": case.batch,
        "optimizer": case.optimizer.kind,
        "planners": [_row_facts(row, cluster) for row in rows],
    }


def _row_facts(row: Row, cluster: Cluster) -> dict[str, Any]:
    verdict = row.verdict
    trace = verdict.trace
    return {
        "planner": row.planner,
        "fits": verdict.round_s is not None,
        "why": verdict.why,
        "round_s": verdict.round_s,
        "samples_per_s": row.samples_per_s,
        "speed_up_of_first": row.speed_up,
        "stages": plans_text(verdict, cluster),
        "plans": [plan.describe() for plan in verdict.plans],
        "memory": {name: {"need_mb": need, "lent_mb": lent} for name, (need, lent) in verdict.memory.items()},
        "busy": {d: trace.busy(d) for d in verdict.plans[0].devices} if trace is not None else {},
    }
