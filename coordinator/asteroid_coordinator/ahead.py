"""Keeps the plans for the likeliest single losses, made before they happen. Pure.

How a runner uses it, with one thread for what is done in the background::

    plans = Ahead(plan, frozenset(profiles))          # a plan begins, or a device comes or goes: what was made is gone
    for loss in plans.missing():                      # in the background, lowest priority, until ``plans`` is replaced
        made = plan_job(spec, imports, without(profiles, loss.device), without(devices, loss.device),
                        plan.generation + 1, loss.way, plan, rounds, again)
        plans = plans.with_made(loss, made)           # None after a PlanError or InputError: planned when it is lost
    # MakePlan(generation, without, way, old) over the devices that are there now:
    made = plans.of(old, way, present) or plan_job(...)

It is a value that is replaced whole, so it may be read while the background makes the next one. Only a plan whose way,
generation and devices are those of the question is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from asteroid_coordinator.job.state import Way
from asteroid_core.plan import Plan

Made = TypeVar("Made")


@dataclass(frozen=True)
class Loss:
    """One device is lost.

    Attributes:
        device: which.
        way: how the plan without it is made.
    """

    device: str
    way: Way


@dataclass(frozen=True)
class Ahead(Generic[Made]):
    """What was planned ahead for one plan and the devices that were there.

    Attributes:
        plan: in force.
        present: devices that may take part, those of the plan and others.
        required: devices without which the job cannot go on: nothing is planned for their loss.
        made: what was made for each loss; None: no plan, so that it is not tried again.
    """

    plan: Plan
    present: frozenset[str]
    required: frozenset[str] = frozenset()
    made: Mapping[Loss, Made | None] = field(default_factory=dict)

    def losses(self) -> list[Loss]:
        """What is worth planning ahead, in this order.

        First the devices that are a stage alone: nobody can go on without a plan with moved boundaries, which takes the
        longest. Then a member of each group, small groups first: the way of a running group, and then that of a job
        that was not live. How often a device fails nobody knows.
        """
        if len(self.present) < 2:
            return []
        size = {device: len(stage.devices) for stage in self.plan.stages for device in stage.devices}
        devices = [device for device in self.plan.devices if device not in self.required]
        devices.sort(key=lambda device: size[device])
        alone = [Loss(device, "replay") for device in devices if size[device] == 1]
        grouped = [device for device in devices if size[device] > 1]
        return [*alone, *(Loss(d, "regroup") for d in grouped), *(Loss(d, "replay") for d in grouped)]

    def missing(self) -> list[Loss]:
        """Losses that nothing was made for yet, in the order of ``losses``."""
        return [loss for loss in self.losses() if loss not in self.made]

    def with_made(self, loss: Loss, made: Made | None) -> Ahead[Made]:
        """Keep what was made for a loss."""
        return replace(self, made={**self.made, loss: made})

    def of(self, old: Plan | None, way: Way, present: Collection[str]) -> Made | None:
        """Return what was made for the loss that leaves these devices; None if that is another loss, or a full plan.

        Args:
            old: the plan that is to be changed.
            way: how.
            present: devices that may take part now.
        """
        gone = self.present - frozenset(present)
        if old is None or way == "full" or old != self.plan or len(gone) != 1 or not set(present) <= self.present:
            return None
        return self.made.get(Loss(next(iter(gone)), way))
