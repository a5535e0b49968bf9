"""The plan: which device trains which layers of the model, on how many samples of each micro-batch.

A plan is a value. It is made by a planner, published retained, and read by everything that needs to know who does
what: ``schedule``, ``routing``, the memory check, the simulator, the workers.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Order = Literal["1f1b", "gpipe"]


class Frozen(BaseModel):
    """Base of all values: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


class Share(Frozen):
    """Part of each micro-batch that one device of a stage works on.

    Attributes:
        device: name of the device.
        samples: rows of each micro-batch, at least 1.
    """

    device: str
    samples: int = Field(ge=1)


class Stage(Frozen):
    """A run of layers and the group of devices that holds a replica of it.

    Attributes:
        lo: first layer.
        hi: one past the last layer.
        shares: the device group in order of rows; the first device is the leader. Reductions add in this order.
        warm_up: K, the most micro-batches whose activations are alive (Asteroid, section on 1F1B: 2(P-p)-1). It
            never rises from one stage to the next.
        backups: devices that keep a copy of this stage's state.
    """

    lo: int = Field(ge=0)
    hi: int = Field(gt=0)
    shares: tuple[Share, ...] = Field(min_length=1)
    warm_up: int = Field(ge=1)
    backups: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the group, in row order."""
        return tuple(share.device for share in self.shares)

    @property
    def leader(self) -> str:
        """The device that speaks for the stage (votes with the gradient norm, sends checkpoints)."""
        return self.shares[0].device

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Row range ``[lo, hi)`` of each device within a full micro-batch."""
        out, at = [], 0
        for share in self.shares:
            out.append((at, at + share.samples))
            at += share.samples
        return tuple(out)


class Tie(Frozen):
    """One parameter that several stages hold: its gradient is reduced over all their devices.

    Attributes:
        name: the user's parameter name.
        stages: indices of the stages that hold a copy; the first one counts it in the gradient norm.
    """

    name: str
    stages: tuple[int, ...] = Field(min_length=2)


class Plan(Frozen):
    """Who trains what, in one generation.

    Attributes:
        generation: grows with each change of plan; older messages are dropped.
        stages: in order of the layers.
        micro_size: B, samples of a micro-batch.
        micro_count: M, micro-batches of a round (mini-batch = B * M).
        order: order of work, see ``schedule``.
        ties: parameters shared across stages.
        planner: who made it.
        predicted_s: predicted round time in seconds, if known.
    """

    generation: int = Field(ge=0)
    stages: tuple[Stage, ...] = Field(min_length=1)
    micro_size: int = Field(ge=1)
    micro_count: int = Field(ge=1)
    order: Order = "1f1b"
    ties: tuple[Tie, ...] = ()
    planner: str = ""
    predicted_s: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Plan:
        at = 0
        seen: set[str] = set()
        for number, stage in enumerate(self.stages):
            if stage.lo != at or stage.hi <= stage.lo:
                raise ValueError(f"stage {number} covers layers {stage.lo}..{stage.hi - 1}, expected to begin at {at}")
            at = stage.hi
            if (total := sum(s.samples for s in stage.shares)) != self.micro_size:
                raise ValueError(f"shares of stage {number} add up to {total} samples, not {self.micro_size}")
            for device in stage.devices:
                if device in seen:
                    raise ValueError(f"device {device} appears twice")
                seen.add(device)
        keeps = [min(stage.warm_up, self.micro_count) for stage in self.stages]
        if self.order == "1f1b" and keeps != sorted(keeps, reverse=True):
            # A stage that wants more micro-batches ahead than the one before it lets go would wait for ever.
            raise ValueError(f"warm-ups {keeps} rise along the stages")
        for tie in self.ties:
            if list(tie.stages) != sorted(set(tie.stages)) or tie.stages[-1] >= len(self.stages):
                raise ValueError(f"tie {tie.name} names stages {tie.stages} of {len(self.stages)}")
        return self

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """All devices, stage by stage."""
        return tuple(d for stage in self.stages for d in stage.devices)

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return self.stages[-1].hi

    @property
    def batch(self) -> int:
        """Samples of a round."""
        return self.micro_size * self.micro_count

    def stage_of(self, device: str) -> int:
        """Index of the stage that ``device`` works on; KeyError if it is not in the plan."""
        for index, stage in enumerate(self.stages):
            if device in stage.devices:
                return index
        raise KeyError(device)

    def reduction_groups(self, device: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Groups of more than one device that ``device`` reduces gradients with: (group index, members in order).

        Group 0 is the stage's own; group 1 + i belongs to ``ties[i]``.
        """
        stage = self.stage_of(device)
        out: list[tuple[int, tuple[str, ...]]] = []
        if len(self.stages[stage].shares) > 1:
            out.append((0, self.stages[stage].devices))
        for number, tie in enumerate(self.ties):
            if stage in tie.stages:
                out.append((number + 1, tuple(d for s in tie.stages for d in self.stages[s].devices)))
        return tuple(out)

    def describe(self) -> str:
        """One line: ``[0-3 a:4 b:4] [4-7 c:8] B=8 M=4``."""
        parts = [
            f"[{s.lo}-{s.hi - 1} {' '.join(f'{h.device}:{h.samples}' for h in s.shares)} K{s.warm_up}]"
            for s in self.stages
        ]
        return f"{' '.join(parts)} B={self.micro_size} M={self.micro_count} {self.order}"
