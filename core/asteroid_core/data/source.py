"""What every data set looks like to the feeder, and the checks that all of them share. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asteroid_core.errors import InputError

Array = npt.NDArray[np.generic]
Indices = npt.NDArray[np.int64]

IGNORED = -100
"""Target that does not count in the loss, as in torch's cross entropy."""


@dataclass(frozen=True)
class Field:
    """Type and shape of one tensor of a sample, without the batch dimension."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Source(Protocol):
    """A data set: samples by number. The same number (and epoch) gives the same bytes, always."""

    @property
    def inputs(self) -> tuple[Field, ...]:
        """What the model is given, tensor by tensor."""

    @property
    def target(self) -> Field:
        """What the loss is given: int64 classes (``IGNORED`` where none), or floats."""

    @property
    def classes(self) -> int | None:
        """Number of classes of the targets, if known."""

    @property
    def vocabulary(self) -> int | None:
        """Number of different integers in the inputs, if they are tokens."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Return inputs and targets of these samples, first dimension the sample.

        Args:
            indices: sample numbers.
            epochs: epoch of each sample, for sources whose samples depend on it; None, epoch 0.

        Raises:
            InputError: a sample cannot be read or holds what cannot be trained on.
        """

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Return how much these samples count in the loss (see ``counted``)."""

    def describe(self) -> str:
        """The data set in one line."""


def counted(targets: Array) -> float:
    """What counts in a loss: integer targets that are not ``IGNORED``; of float targets, the samples."""
    if np.issubdtype(targets.dtype, np.integer):
        return float(np.count_nonzero(targets != IGNORED))
    return float(len(targets))


def check_targets(targets: Array, name: str, indices: Indices | None = None) -> None:
    """Refuse class numbers below zero (other than ``IGNORED``) and floats that are not finite.

    Raises:
        InputError: names the first such sample.
    """
    if np.issubdtype(targets.dtype, np.integer):
        numbers = targets.astype(np.int64)
        bad = (numbers < 0) & (numbers != IGNORED)
        what, remedy = "a negative class", f"Classes are 0, 1, 2, ...; {IGNORED} marks what does not count."
    else:
        bad = ~np.isfinite(targets)
        what, remedy = "a target that is not finite (NaN or inf)", "Mend or remove that sample."
    _refuse(bad, what, remedy, name, indices)


def check_inputs(inputs: Array, name: str, indices: Indices | None = None) -> None:
    """Refuse float inputs that are not finite.

    Raises:
        InputError: names the first such sample.
    """
    if np.issubdtype(inputs.dtype, np.inexact):
        _refuse(~np.isfinite(inputs), "an input that is not finite (NaN or inf)", "Mend it.", name, indices)


def _refuse(bad: npt.NDArray[np.bool_], what: str, remedy: str, name: str, indices: Indices | None) -> None:
    if not bad.any():
        return
    row = int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
    number = row if indices is None else int(indices[row])
    raise InputError(f"Sample {number} of {name} has {what}.", remedy)


def as_trained(array: Array, dtype: str) -> Array:
    """Bring a batch to the types that models take: floats become ``dtype``, integers and booleans int64.

    Raises:
        TypeError: neither numbers nor booleans.
    """
    if np.issubdtype(array.dtype, np.floating):
        return np.ascontiguousarray(array, dtype=dtype)
    if np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_:
        return np.ascontiguousarray(array, dtype=np.int64)
    raise TypeError(f"{array.dtype} is not a type that can be trained on")


def trained_field(array: Array, dtype: str) -> Field:
    """The field of a batch after ``as_trained``."""
    return Field(str(as_trained(array[:1], dtype).dtype), tuple(array.shape[1:]))
