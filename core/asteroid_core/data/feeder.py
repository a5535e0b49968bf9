"""What is fed: the samples of every micro-batch, as a pure function of job and round. No link, no threads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asteroid_core.data.source import Array, Indices, Source
from asteroid_core.rounds import STREAM_SPLIT, TRAINING, VALIDATION, RoundPlan, permutation, validation_micros


@dataclass(frozen=True, eq=False)
class Split:
    """Which samples train and which validate; every sample is in exactly one of the two, both in rising order."""

    training: Indices
    validation: Indices

    @staticmethod
    def of(samples: int, fraction: float, seed: int) -> Split:
        """Draw ``fraction`` of the samples for validation: a function of its arguments alone.

        A fraction above zero gives at least one validation sample, if one can be spared.
        """
        if not 0 <= fraction < 1:
            raise ValueError(f"a validation part of {fraction}")
        wanted = max(1, round(samples * fraction)) if fraction else 0
        count = min(wanted, max(samples - 1, 0))
        order = permutation(samples, seed, STREAM_SPLIT)
        return Split(np.sort(order[count:]), np.sort(order[:count]))


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The samples of one micro-batch.

    Attributes:
        epochs: epoch of each sample (0 in validation).
        indices: index of each sample in its split.
        inputs: one array an input of the model, rows are samples.
        targets: what the loss is given.
        normaliser: what counts in the whole mini-batch, or in the whole validation split: losses are divided by it, so
            that devices add and nobody averages averages.
    """

    epochs: Indices
    indices: Indices
    inputs: list[Array]
    targets: Array
    normaliser: float


@dataclass
class Normaliser:
    """What counts in each mini-batch, counted once: of the last round asked for, and of the validation split."""

    _source: Source
    _last: tuple[int, float] | None = None
    _validation: float | None = None

    def of_round(self, round: int, samples: Indices, epochs: Indices) -> float:
        """The sum over a training round."""
        if self._last is None or self._last[0] != round:
            self._last = (round, self._source.count(samples, epochs))
        return self._last[1]

    def of_validation(self, samples: Indices) -> float:
        """The sum over the validation split."""
        if self._validation is None:
            self._validation = self._source.count(samples, None)
        return self._validation


@dataclass(eq=False)
class FeedPlan:
    """Draws micro-batches.

    Args:
        rounds: over the training split.
        source: the data set.
        split: of its samples.
    """

    rounds: RoundPlan
    source: Source
    split: Split
    _normaliser: Normaliser = field(init=False)

    def __post_init__(self) -> None:
        if self.rounds.samples != len(self.split.training):
            raise ValueError(f"rounds over {self.rounds.samples} samples, a split of {len(self.split.training)}")
        self._normaliser = Normaliser(self.source)

    def micros(self, phase: int) -> int:
        """Micro-batches of a pass."""
        return self.rounds.micros if phase == TRAINING else len(self._validation_sizes())

    def micro_batch(self, phase: int, round: int, number: int) -> MicroBatch:
        """Return a micro-batch of a pass.

        Raises:
            InputError: a sample cannot be read.
        """
        if phase == TRAINING:
            return self._training(round, number)
        if phase == VALIDATION:
            return self._validation(number)
        raise ValueError(f"phase {phase}")

    def _training(self, round: int, number: int) -> MicroBatch:
        all_epochs, all_indices = self.rounds.sample_keys(round)
        normaliser = self._normaliser.of_round(round, self.split.training[all_indices], all_epochs)
        epochs, indices = self.rounds.micro(round, number)
        inputs, targets = self.source.batch(self.split.training[indices], epochs)
        return MicroBatch(epochs, indices, inputs, targets, normaliser)

    def _validation(self, number: int) -> MicroBatch:
        sizes = self._validation_sizes()
        if not 0 <= number < len(sizes):
            raise IndexError(f"validation micro-batch {number} of {len(sizes)}")
        start = number * self.rounds.micro_size
        indices = np.arange(start, start + sizes[number], dtype=np.int64)
        epochs = np.zeros(len(indices), dtype=np.int64)
        inputs, targets = self.source.batch(self.split.validation[indices], epochs)
        return MicroBatch(epochs, indices, inputs, targets, self._normaliser.of_validation(self.split.validation))

    def _validation_sizes(self) -> tuple[int, ...]:
        return validation_micros(len(self.split.validation), self.rounds.micro_size)
