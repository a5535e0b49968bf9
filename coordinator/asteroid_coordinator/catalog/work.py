"""What the layers of a model ask of a device: their operators one by one, the same on every device. Values only."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from asteroid_core.plan import Frozen
from asteroid_core.profile import LayerInfo

Kind = Literal["conv", "depthwise", "matmul", "memory"]
"""Kinds of work that hardware is good at to different degrees; ``memory`` is everything that only moves values."""


class Operator(NamedTuple):
    """One operator of a graph.

    Attributes:
        kind: of work.
        flops: forward floating-point operations of a sample.
        moved: bytes of a sample that its forward reads and writes.
        weights: bytes of weights that its forward reads, however many samples there are.
        trained: bytes of weight gradients that its backward makes.
    """

    kind: Kind
    flops: float
    moved: int
    weights: int = 0
    trained: int = 0


class LayerWork(Frozen):
    """A layer: what the planner weighs, and the operators that take the time."""

    info: LayerInfo
    operators: tuple[Operator, ...]


class TiedWork(Frozen):
    """A parameter that several layers use.

    Attributes:
        layers: those that use it.
        size: its bytes.
    """

    layers: tuple[int, ...]
    size: int


class ModelWork(Frozen):
    """A model in layers.

    Attributes:
        name: of the model.
        samples: what a sample is, for people.
        made: how these numbers were made.
        layers: in order.
        tied: parameters that several layers use, by name.
    """

    name: str
    samples: str
    made: str
    layers: tuple[LayerWork, ...]
    tied: dict[str, TiedWork] = Field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters (32-bit)."""
        return sum(layer.info.trainable_bytes for layer in self.layers) // 4

    @property
    def flops(self) -> float:
        """Forward floating-point operations of a sample, convolutions and matrix products only."""
        return sum(op.flops for layer in self.layers for op in layer.operators if op.kind != "memory")

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.parameters / 1e6:.1f} M parameters, {self.flops / 1e9:.3g} GFLOP a sample forward, "
            f"{len(self.layers)} layers, {self.samples}"
        )
