"""What one round of a plan costs, piece by piece: enough to run its schedules in virtual time anywhere."""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from asteroid_core.plan import Frozen


class Network(Frozen):
    """How devices reach each other; each one's own link is part of its profile.

    Attributes:
        direct: devices send to each other through a switch (the paper's setting); else all goes through the broker.
        hub_bytes_per_s: speed of the broker's own link, each direction, shared by all; None: never the narrowest.
        chunk_bytes: largest message; the broker passes one on only when it has all of it.
    """

    direct: bool = False
    hub_bytes_per_s: float | None = Field(default=None, gt=0)
    chunk_bytes: int = Field(default=256 * 1024, ge=1)


class DeviceCost(Frozen):
    """Seconds that one device spends on its share, and the speed of its link.

    Attributes:
        device: its name.
        forward_s: forward of one micro-batch's share.
        backward_s: backward of one micro-batch's share.
        step_s: the optimizer step.
        reduce_s: what a reduction computes: gradients to one vector, the addition, and back.
        bytes_per_s: speed of its link, each direction.
        message_s: fixed time of one tensor from or to it.
        wire_s_per_byte: time by which a byte that it sends or receives holds up its computing.
    """

    device: str
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    step_s: float = Field(default=0.0, ge=0)
    reduce_s: float = Field(default=0.0, ge=0)
    bytes_per_s: float = Field(default=100e6, gt=0)
    message_s: float = Field(default=0.001, ge=0)
    wire_s_per_byte: float = Field(default=0.0, ge=0)


class FeedCost(Frozen):
    """Samples and targets on their way to the first and the last stage.

    Attributes:
        sample_bytes: inputs of one sample.
        target_bytes: its target.
        device: the device that owns the data and feeds; empty: the coordinator does.
        bytes_per_s: speed of the coordinator's link.
    """

    sample_bytes: float = Field(default=0.0, ge=0)
    target_bytes: float = Field(default=0.0, ge=0)
    device: str = ""
    bytes_per_s: float = Field(default=100e6, gt=0)


class Costs(Frozen):
    """Costs of a plan under the measured profile.

    Attributes:
        devices: one entry a device of the plan.
        activation_bytes: for each boundary between stage i and i + 1, bytes per sample forward.
        gradient_bytes: the same, backward.
        reduce_bytes: for each stage, bytes of the gradient vector.
        tie_bytes: for each tie, bytes of the parameter that several stages hold.
        network: how tensors travel.
        feed: how samples come; None: they are there (every device has the data).
    """

    devices: tuple[DeviceCost, ...]
    activation_bytes: tuple[int, ...] = ()
    gradient_bytes: tuple[int, ...] = ()
    reduce_bytes: tuple[int, ...] = ()
    tie_bytes: tuple[int, ...] = ()
    network: Network = Network()
    feed: FeedCost | None = None

    @cached_property
    def by_name(self) -> dict[str, DeviceCost]:
        """Costs of each device."""
        return {cost.device: cost for cost in self.devices}
