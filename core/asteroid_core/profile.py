"""Measured profiles: what a layer is, and how long each layer takes on a device at several batch sizes."""

from __future__ import annotations

import bisect

from pydantic import Field, ValidationError, model_validator

from asteroid_core.errors import WireError
from asteroid_core.plan import Frozen


class LayerInfo(Frozen):
    """What a layer weighs, the same on every device.

    Attributes:
        name: of its first node.
        parameter_bytes: weights and buffers that it is the first to use.
        trainable_bytes: the part of them that has gradients.
        output_bytes: bytes per sample that cross its end.
        gradient_bytes: bytes per sample that come back across its end.
        activation_bytes: bytes per sample that are kept for the backward.
        flops: forward floating-point operations per sample.
    """

    name: str
    parameter_bytes: int = Field(ge=0)
    trainable_bytes: int = Field(ge=0)
    output_bytes: int = Field(ge=0)
    gradient_bytes: int = Field(ge=0)
    activation_bytes: int = Field(ge=0)
    flops: float = Field(ge=0)


class LayerTimes(Frozen):
    """Seconds of one layer on one device.

    Attributes:
        batches: measured batch sizes, rising.
        forward_s: forward at each of them.
        backward_s: backward at each of them.
        step_s: its part of the optimizer step.
        activation_bytes: bytes per sample that its forward keeps for the backward, as measured.
    """

    batches: tuple[int, ...] = Field(min_length=1)
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: float = 0.0
    activation_bytes: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check(self) -> LayerTimes:
        if not len(self.batches) == len(self.forward_s) == len(self.backward_s):
            raise ValueError("as many times as batch sizes are needed")
        if list(self.batches) != sorted(set(self.batches)) or self.batches[0] < 1:
            raise ValueError("batch sizes must rise, from 1 or more")
        return self

    def forward(self, batch: float) -> float:
        """Seconds of a forward of ``batch`` samples."""
        return interpolate(self.batches, self.forward_s, batch)

    def backward(self, batch: float) -> float:
        """Seconds of a backward of ``batch`` samples."""
        return interpolate(self.batches, self.backward_s, batch)


def interpolate(batches: tuple[int, ...], seconds: tuple[float, ...], batch: float) -> float:
    """Interpolate linearly over batch size; the smallest is a floor, beyond the largest the time is proportional."""
    if batch <= batches[0]:
        return seconds[0]
    if batch >= batches[-1]:
        return seconds[-1] * batch / batches[-1]
    at = bisect.bisect_right(batches, batch)
    part = (batch - batches[at - 1]) / (batches[at] - batches[at - 1])
    return seconds[at - 1] + part * (seconds[at] - seconds[at - 1])


class DeviceProfile(Frozen):
    """What was measured on one device for one model.

    Attributes:
        device: its name.
        backend: what computed.
        layers: times of every layer.
        runtime_mb: resident memory of a worker without a stage.
        bytes_per_s: through the broker and back.
        message_s: one small tensor through the broker and back.
        wire_s_per_byte: time by which a byte sent or received holds up computing (the link's thread needs a core too).
        reduce_s_per_byte: time that a byte of a reduced gradient takes to be made a vector, added and put back.
    """

    device: str
    backend: str
    layers: tuple[LayerTimes, ...]
    runtime_mb: float = 0.0
    bytes_per_s: float = Field(default=100e6, gt=0)
    message_s: float = Field(default=0.001, ge=0)
    wire_s_per_byte: float = Field(default=0.0, ge=0)
    reduce_s_per_byte: float = Field(default=0.0, ge=0)

    def to_text(self) -> str:
        """Return the profile as JSON text; long ones travel in parts."""
        return self.model_dump_json()

    @classmethod
    def from_text(cls, text: str) -> DeviceProfile:
        """Read ``to_text``.

        Raises:
            WireError: not a profile.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise WireError(f"A profile cannot be read: {error.errors()[0]['msg']}.") from None

    def describe(self) -> str:
        """One line for people."""
        top = max(t.batches[-1] for t in self.layers)
        seconds = sum(t.forward(top) + t.backward(top) for t in self.layers)
        return (
            f"{top / seconds:.0f} samples/s alone at batch {top}, "
            f"{self.bytes_per_s / 1e6:.0f} MB/s through the broker, "
            f"{self.message_s * 1e3:.1f} ms a message"
        )
