"""From a job and what was measured to the planner's problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from asteroid_coordinator.cluster.registry import Device
from asteroid_coordinator.job.state import Way
from asteroid_coordinator.planner import Outcome, make_plan, round_time
from asteroid_coordinator.planner.costing import costs_of, memory_of
from asteroid_coordinator.planner.fixed import named
from asteroid_coordinator.planner.problem import Problem, Site, Tied, Wishes
from asteroid_coordinator.planner.replay import HORIZON, lighter, replay
from asteroid_coordinator.replication import KEPT, copies_mb, replicate
from asteroid_core.costs import FeedCost, Network
from asteroid_core.data.source import Field
from asteroid_core.errors import InputError, PlanError
from asteroid_core.ids import COORDINATOR
from asteroid_core.plan import Plan
from asteroid_core.profile import DeviceProfile
from asteroid_core.spec import JobSpec, ReplicationSpec

if TYPE_CHECKING:
    from asteroid_coordinator.importing import Imports

LARGEST_MICRO = 32
"""Largest micro-batch that is planned when the job leaves it open."""


def micro_sizes(spec: JobSpec) -> tuple[int, ...]:
    """Micro-batch sizes that may be planned: the job's own, or the divisors of its batch that are not too large."""
    batch = spec.train.batch
    if isinstance(spec.train.micro_batch, int):
        return (spec.train.micro_batch,)
    return tuple(size for size in range(min(batch, LARGEST_MICRO), 0, -1) if batch % size == 0)


@dataclass(frozen=True)
class PlannedJob:
    """A plan, who keeps copies, and how it was found.

    Attributes:
        outcome: the plan with backups, its costs and memory.
        snapshot_every: rounds between snapshots; 0: only checkpoints.
        way: how it was made.
        note: what a person should know; empty if all is well.
    """

    outcome: Outcome
    snapshot_every: int
    way: Way
    note: str = ""


def plan_job(
    spec: JobSpec,
    imports: Imports,
    profiles: Mapping[str, DeviceProfile],
    devices: Mapping[str, Device],
    generation: int,
    way: Way = "full",
    old: Plan | None = None,
    rounds: int = HORIZON,
    again: int | None = None,
) -> PlannedJob:
    """Plan a job over the devices that are there.

    Memory for two snapshots of each stage is set aside; where nothing fits with it, checkpoints must do.

    Args:
        spec: the job.
        imports: its model.
        profiles: measured profile of each device.
        devices: what the devices lend, by the same names.
        generation: of the plan.
        way: how to plan; a way that leads nowhere gives way to the next one.
        old: the last plan, for the ways that change it.
        rounds: that remain, for the ways that change it.
        again: rounds that are run again if boundaries move; None: regroup wherever that does.

    Raises:
        InputError: a plan by hand that cannot be used, or too few devices for the wanted stages.
        PlanError: nothing fits.
    """
    sites = []
    for name in sorted(profiles):
        info = devices[name].info
        assert info is not None, "a device is present only once its hardware is known"
        sites.append(Site(name, profiles[name], float(info.budget_mb)))
    wanted, fixed = spec.plan.stages, spec.plan.fixed
    most = min(len(sites), len(imports.model.layers))
    if generation > 1:
        # What a person asked of the first plan cannot bind the one that must do with what is left.
        wanted = min(wanted, most) if wanted is not None else None
        fixed = fixed if fixed is not None and named(fixed) <= set(profiles) else None
    if wanted is not None and wanted > most:
        raise InputError(
            f"plan.stages asks for {wanted} stages, but there are {len(sites)} devices and "
            f"{len(imports.model.layers)} layers.",
            "Ask for fewer stages, or start more agents.",
        )
    owner = spec.data.owner
    required = frozenset() if owner == COORDINATOR else frozenset({owner})
    if not required <= set(profiles):
        raise InputError(
            f"The data of this job lies on {owner}, which cannot take part now.",
            f"Start its agent, then: asteroid resume {spec.name}",
        )
    problem = Problem(
        layers=imports.model.layers,
        sites=tuple(sites),
        wishes=Wishes(spec.train.batch, micro_sizes(spec), spec.plan.order, wanted, spec.plan.all_devices, required),
        optimizer=spec.optimizer,
        tied={name: Tied(layers, imports.model.size_of(name)) for name, layers in imports.model.ties.items()},
        network=Network(hub_bytes_per_s=imports.hub_bytes_per_s),
        feed=_feed(imports, owner),
        snapshots=KEPT if spec.replication.every != 0 else 1,
    )

    def make(problem: Problem) -> PlannedJob:
        plan, used = _lighter(problem, way, old, rounds, again)
        if plan is None:
            made = make_plan(problem, generation, spec.plan.planner, fixed)
        else:
            made = Outcome(plan, costs_of(plan, problem), memory_of(plan, problem))
        kept = replicate(problem, made.plan, spec.replication if problem.snapshots > 1 else _OFF)
        copies = copies_mb(problem, kept.plan)
        memory = {name: (need + copies.get(name, 0.0), lent) for name, (need, lent) in made.memory.items()}
        return PlannedJob(replace(made, plan=kept.plan, memory=memory), kept.every, used, kept.note)

    try:
        return make(problem)
    except PlanError:
        if problem.snapshots == 1:
            raise
    slim = make(replace(problem, snapshots=1))
    note = "there is no memory for snapshots on the devices: a loss goes back to the last checkpoint"
    return replace(slim, note=note)


_OFF = ReplicationSpec(every=0)


def _lighter(problem: Problem, way: Way, old: Plan | None, rounds: int, again: int | None) -> tuple[Plan | None, Way]:
    """The light plan that does without the lost devices, and how it was made; None: plan anew."""
    if old is None or way == "full":
        return None, "full"
    if way == "replay":
        plan, regrouped = replay(problem, old, round_time, rounds), False
    else:
        plan, regrouped = lighter(problem, old, round_time, rounds, again)
    if plan is None:
        return None, "full"
    return plan, "regroup" if regrouped else "replay"


def _feed(imports: Imports, owner: str) -> FeedCost:
    """What samples cost on their way to the first stage, and targets on theirs to the last."""
    source, link = imports.source, imports.coordinator
    feed = FeedCost(
        sample_bytes=sum(_bytes(field) for field in source.inputs),
        target_bytes=_bytes(source.target),
        device="" if owner == COORDINATOR else owner,
    )
    return feed if link is None else feed.model_copy(update={"bytes_per_s": link.bytes_per_s})


def _bytes(field: Field) -> int:
    return int(np.dtype(field.dtype).itemsize) * math.prod(field.shape)
