"""What a worker asks of an engine that computes: one protocol, torch today, others beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asteroid_core.wire.tensor import Tensor

Vector = npt.NDArray[np.floating]
Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class SampleKeys:
    """Which samples a device works on: what dropout masks depend on.

    Attributes:
        seed: of the job.
        epochs: epoch of each sample.
        indices: index of each sample in the training split.
    """

    seed: int
    epochs: npt.NDArray[np.integer]
    indices: npt.NDArray[np.integer]


@dataclass(frozen=True)
class Scores:
    """What the last stage counts.

    Attributes:
        loss: sum of the samples' losses, divided by the mini-batch's normaliser.
        correct: right answers (classification).
        counted: samples, or tokens, that were looked at.
    """

    loss: float = 0.0
    correct: float = 0.0
    counted: float = 0.0

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.loss + other.loss, self.correct + other.correct, self.counted + other.counted)


class Backend(Protocol):
    """One stage: its weights, the activations of the micro-batches in flight, its gradients, its optimizer."""

    def begin_round(self) -> None:
        """Forget all gradients and activations; remember statistics and counters."""

    def rollback(self) -> None:
        """Take statistics and counters back to the begin of the round."""

    def forward(self, micro: int, inputs: Sequence[Tensor], *, train: bool, samples: SampleKeys | None) -> list[Tensor]:
        """Return the outputs of a micro-batch's share; in training, keep what the backward needs."""

    def forward_loss(
        self,
        micro: int,
        inputs: Sequence[Tensor],
        target: Tensor,
        normaliser: float,
        *,
        train: bool,
        samples: SampleKeys | None,
    ) -> Scores:
        """The same on the last stage: loss and scores instead of outputs."""

    def kept_bytes(self, rows: int) -> int:
        """Bytes that a training forward of ``rows`` example samples keeps for its backward, weights not counted."""

    def backward(self, micro: int, grads: Sequence[Tensor] | None) -> list[Tensor]:
        """Add to the parameters' gradients; return the gradients of the inputs that have one.

        Args:
            micro: which micro-batch.
            grads: of the outputs that have one, in order; None on the last stage.
        """

    def free(self, micro: int) -> None:
        """Drop what is left of a micro-batch."""

    def gradient(self, group: int | str) -> Vector:
        """Return the gradients of a reduction group, flat: 0 is the stage's own, a name is a shared parameter."""

    def set_gradient(self, group: int | str, vector: Vector) -> None:
        """Replace the gradients of a reduction group."""

    def squared_norm(self, shared: Sequence[str]) -> float:
        """Return the squared L2 norm of the gradients: the stage's own, and the shared parameters named here."""

    def statistics(self) -> Vector:
        """Return the running statistics, flat, in the type of the gradients."""

    def set_statistics(self, vector: Vector) -> None:
        """Replace the running statistics."""

    def step(self, learning_rate: float, scale: float) -> None:
        """Multiply the gradients by ``scale``, take one optimizer step, forget the gradients."""

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return weights, buffers and optimizer state (``opt/<parameter>/<slot>``); the next step may change them."""
