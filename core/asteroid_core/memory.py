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
        weights: parameters and buffers, and the copies of them that snapshots keep.
        gradients: of the trainable ones, and what a reduction holds beside them.
        optimizer: momentum, or AdamW's two moments, and their copies in snapshots.
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
        tied: parameters that several layers use: those layers, rising, and its bytes. Its first user counts it; a
            stage that begins later and uses it too holds a copy.
        snapshots: of its own state that a device keeps: 1 for checkpoints alone (it is gone when it has been sent), 2
            with replication (the durable one and the next).
    """

    def __init__(
        self, layers: Sequence[LayerInfo], tied: Sequence[tuple[Sequence[int], int]] = (), snapshots: int = 1
    ) -> None:
        self.layers = tuple(layers)
        self._copies = 1 + snapshots
        self._tied = tuple((tuple(users), size) for users, size in tied)
        self._parameters = _prefix([layer.parameter_bytes for layer in layers])
        self._trainable = _prefix([layer.trainable_bytes for layer in layers])
        self._activations = _prefix([layer.activation_bytes for layer in layers])

    @cached_property
    def count(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def trainable(self, lo: int, hi: int) -> int:
        """Bytes of trainable parameters of layers ``[lo, hi)`` that no layer before them counts."""
        return self._trainable[hi] - self._trainable[lo]

    def copies(self, lo: int, hi: int) -> int:
        """Bytes of tied parameters that layers ``[lo, hi)`` use and an earlier layer counts."""
        return sum(size for users, size in self._tied if users[0] < lo and any(lo <= user < hi for user in users))

    def boundary(self, at: int) -> tuple[int, int]:
        """Bytes per sample across the cut before layer ``at``: (forward, backward)."""
        layer = self.layers[at - 1]
        return layer.output_bytes, layer.gradient_bytes

    def held(self, lo: int, hi: int, optimizer: OptimizerSpec, replicas: int) -> tuple[int, int, int]:
        """Bytes that do not depend on samples: (weights, gradients, optimizer), see ``Memory``."""
        parameters, trainable = self._sizes(lo, hi)
        kept = self._copies
        return kept * parameters, trainable * (3 if replicas > 1 else 1), kept * moments(optimizer) * trainable

    def state(self, lo: int, hi: int, optimizer: OptimizerSpec) -> int:
        """Bytes of one snapshot of layers ``[lo, hi)``: what a device that keeps one for another needs."""
        parameters, trainable = self._sizes(lo, hi)
        return parameters + moments(optimizer) * trainable

    def _sizes(self, lo: int, hi: int) -> tuple[int, int]:
        copies = self.copies(lo, hi) if self._tied else 0
        return self._parameters[hi] - self._parameters[lo] + copies, self.trainable(lo, hi) + copies

    def per_sample(self, lo: int, hi: int) -> int:
        """Bytes of one sample of one micro-batch that is alive: what autograd keeps, and the boundary tensors."""
        out = self._activations[hi] - self._activations[lo]
        if lo > 0:
            out += sum(self.boundary(lo))
        if hi < self.count:
            out += sum(self.boundary(hi))
        return out

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
        weights, gradients, kept = self.held(lo, hi, optimizer, replicas)
        return Memory(
            weights=weights,
            gradients=gradients,
            optimizer=kept,
            activations=samples * alive * self.per_sample(lo, hi),
            runtime=int(runtime_mb * 1e6),
        )


def _prefix(values: Sequence[int]) -> list[int]:
    out = [0]
    for value in values:
        out.append(out[-1] + value)
    return out
