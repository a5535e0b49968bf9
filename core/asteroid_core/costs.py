"""What one round of a plan costs, piece by piece: enough to run its schedules in virtual time anywhere."""

from __future__ import annotations

from pydantic import Field

from asteroid_core.plan import Frozen


class DeviceCost(Frozen):
    """Seconds that one device spends on its share.

    Attributes:
        device: its name.
        forward_s: forward of one micro-batch's share.
        backward_s: backward of one micro-batch's share.
        step_s: the optimizer step.
    """

    device: str
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    step_s: float = Field(default=0.0, ge=0)


class Costs(Frozen):
    """Costs of a plan under the measured profile.

    Attributes:
        devices: one entry a device of the plan.
        activation_bytes: for each boundary between stage i and i + 1, bytes per sample forward.
        gradient_bytes: the same, backward.
        reduce_bytes: for each stage, bytes of the gradient vector.
        tie_bytes: for each tie, bytes of the parameter that several stages hold.
        bytes_per_s: speed of a transfer through the broker.
        message_s: fixed time of one tensor through the broker.
    """

    devices: tuple[DeviceCost, ...]
    activation_bytes: tuple[int, ...] = ()
    gradient_bytes: tuple[int, ...] = ()
    reduce_bytes: tuple[int, ...] = ()
    tie_bytes: tuple[int, ...] = ()
    bytes_per_s: float = Field(default=100e6, gt=0)
    message_s: float = Field(default=0.001, ge=0)
