"""Memory of one device's part of a plan: the one formula that planner, plan view and refusals use (Asteroid, Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from asteroid_core.profile import LayerInfo
from asteroid_core.spec import OptimizerSpec


@dataclass(frozen=True)
class Memory:
    """Bytes that a worker needs, by what they are for.

    Attributes:
        weights: parameters and buffers, and the copy that a checkpoint makes of them.
        gradients: of the trainable ones, and what a reduction holds beside them.
        optimizer: momentum, or AdamW's two moments, and their copy in a checkpoint.
        activations: kept for the backward of the micro-batches that are alive, and boundary tensors.
        runtime: the process itself, as measured.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    runtime: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.runtime


def moments(optimizer: OptimizerSpec) -> int:
    """Values that the optimizer keeps for each parameter."""
    if optimizer.kind == "adamw":
        return 2
    return 1 if optimizer.momentum > 0 else 0


class LayerSums:
    """Sums over runs of layers, so that a stage costs nothing to ask for.

    Args:
        layers: of the whole model.
    """

    def __init__(self, layers: Sequence[LayerInfo]) -> None:
        self.layers = tuple(layers)
        self._parameters = _prefix([layer.parameter_bytes for layer in layers])
        self._trainable = _prefix([layer.trainable_bytes for layer in layers])
        self._activations = _prefix([layer.activation_bytes for layer in layers])

    @cached_property
    def count(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def parameters(self, lo: int, hi: int) -> int:
        """Bytes of parameters and buffers of layers ``[lo, hi)``."""
        return self._parameters[hi] - self._parameters[lo]

    def trainable(self, lo: int, hi: int) -> int:
        """Bytes of trainable parameters of layers ``[lo, hi)``."""
        return self._trainable[hi] - self._trainable[lo]

    def boundary(self, at: int) -> tuple[int, int]:
        """Bytes per sample across the cut before layer ``at``: (forward, backward)."""
        layer = self.layers[at - 1]
        return layer.output_bytes, layer.gradient_bytes

    def memory(
        self, lo: int, hi: int, samples: int, alive: int, optimizer: OptimizerSpec, replicas: int, runtime_mb: float
    ) -> Memory:
        """Return what a device needs for layers ``[lo, hi)`` (Asteroid, Eq. 3: MOD + OPT + K * ACT, and the runtime).

        Args:
            lo: first layer.
            hi: one past the last layer.
            samples: its share of a micro-batch.
            alive: micro-batches whose activations are alive at once (K).
            optimizer: decides how many moments are kept.
            replicas: devices of the group; more than one keeps the reduced vector and a peer's slice beside its own.
            runtime_mb: resident memory of a worker without a stage.
        """
        trainable = self.trainable(lo, hi)
        kept = moments(optimizer) * trainable
        cut = 0
        if lo > 0:
            cut += sum(self.boundary(lo))
        if hi < self.count:
            cut += sum(self.boundary(hi))
        activations = self._activations[hi] - self._activations[lo]
        return Memory(
            weights=2 * self.parameters(lo, hi),
            gradients=trainable * (3 if replicas > 1 else 1),
            optimizer=2 * kept,
            activations=samples * alive * (activations + cut),
            runtime=int(runtime_mb * 1e6),
        )


def _prefix(values: Sequence[int]) -> list[int]:
    out = [0]
    for value in values:
        out.append(out[-1] + value)
    return out
