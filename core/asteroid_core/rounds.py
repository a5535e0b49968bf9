"""Which samples a round has: a pure function of (seed, epoch, round), so that a replay trains on the same ones.

Training rounds run over the concatenated permutations of the epochs, so each has exactly B*M samples and one round may
end an epoch and begin the next. What is left after the last epoch does not fill a round and is dropped (``dropped``).
Coordinator, feeder and workers compute this on their own; nothing but the seed travels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from asteroid_core.errors import InputError
from asteroid_core.spec import TrainSpec

Indices = npt.NDArray[np.int64]

TRAINING = 0
"""Phase of a training pass."""
VALIDATION = 1
"""Phase of a validation pass."""

# Second words of Philox keys: an epoch number never reaches 2**56, so streams of different purposes never meet.
STREAM_ORDER = 0
STREAM_SPLIT = 1 << 56
STREAM_MASK = 2 << 56


def raw64(seed: int, stream: int, count: int) -> npt.NDArray[np.uint64]:
    """The first ``count`` words of the Philox stream with the key (seed, stream).

    The words of a bit generator are part of numpy's promise of stability; what ``Generator`` makes of them is not.
    """
    words = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)
    return np.asarray(words, dtype=np.uint64)


@lru_cache(maxsize=4)
def permutation(samples: int, seed: int, stream: int) -> Indices:
    """A permutation of ``range(samples)``: the order of random words, equal words by position. Read-only."""
    order = np.argsort(raw64(seed, stream, samples), kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """The order of the training samples in an epoch."""
    return permutation(samples, seed, STREAM_ORDER + epoch)


@dataclass(frozen=True, init=False)
class RoundPlan:
    """The training rounds of a job.

    Attributes:
        samples: size of the training split.
        batch: samples of a round, B*M.
        micro_size: samples of a micro-batch, B.
        epochs: passes over the training split; None if only ``max_rounds`` counts.
        seed: of the job.
        max_rounds: stop after so many rounds; None if only ``epochs`` counts.
    """

    samples: int
    batch: int
    micro_size: int
    epochs: int | None
    seed: int
    max_rounds: int | None

    def __init__(
        self, samples: int, batch: int, micro: int, epochs: int | None, seed: int, max_rounds: int | None = None
    ) -> None:
        given = {"samples": samples, "batch": batch, "micro_size": micro, "epochs": epochs, "seed": seed}
        for name, value in {**given, "max_rounds": max_rounds}.items():
            object.__setattr__(self, name, value)
        self._validate()

    @classmethod
    def of(cls, train: TrainSpec, samples: int, micro: int) -> RoundPlan:
        """The rounds of a job over ``samples`` training samples, cut into micro-batches of ``micro``."""
        return cls(samples, train.batch, micro, train.epochs, train.seed, train.rounds)

    def _validate(self) -> None:
        if self.samples < 1:
            raise InputError("There are no training samples.", "Give more data, or a smaller data.validation.")
        if self.batch < 1 or self.micro_size < 1 or self.batch % self.micro_size:
            raise InputError(
                f"A round of {self.batch} samples cannot be cut into micro-batches of {self.micro_size}.",
                "Choose a train.micro_batch that divides train.batch.",
            )
        if self.epochs is None and self.max_rounds is None:
            raise InputError("A job needs a length.", "Give train.epochs or train.rounds.")
        if (self.epochs is not None and self.epochs < 1) or (self.max_rounds is not None and self.max_rounds < 1):
            raise InputError("A job of no epochs or no rounds trains nothing.", "Give at least 1.")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"The seed {self.seed} is out of range.", "Use 0 to 2**32 - 1.")
        if self.rounds < 1:
            raise InputError(
                f"{self.samples} training samples in {self.epochs} epochs do not fill one round of {self.batch}.",
                "Use a smaller train.batch, more epochs or more data.",
            )

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        if self.epochs is None:
            assert self.max_rounds is not None
            return self.max_rounds
        whole = self.epochs * self.samples // self.batch
        return whole if self.max_rounds is None else min(whole, self.max_rounds)

    @property
    def dropped(self) -> int:
        """Samples after the last epoch's end that do not fill a round; 0 if ``max_rounds`` ends the job before."""
        if self.epochs is None or self.rounds < self.epochs * self.samples // self.batch:
            return 0
        return self.epochs * self.samples % self.batch

    @property
    def micros(self) -> int:
        """M, micro-batches of a round."""
        return self.batch // self.micro_size

    def sample_keys(self, round: int) -> tuple[Indices, Indices]:
        """Return the epoch of each sample of a round and its index in the training split, in order."""
        self._check(round)
        return self._keys(round * self.batch, self.batch)

    def micro(self, round: int, number: int) -> tuple[Indices, Indices]:
        """Return ``sample_keys`` of one micro-batch of a round."""
        self._check(round)
        if not 0 <= number < self.micros:
            raise IndexError(f"micro-batch {number} of {self.micros}")
        return self._keys(round * self.batch + number * self.micro_size, self.micro_size)

    def validation_due(self, round: int, every: int | None = None) -> bool:
        """Whether validation follows a round.

        It follows the last round, and every ``every`` rounds; without ``every``, each round in which an epoch's last
        sample falls.
        """
        self._check(round)
        done = round + 1
        if done == self.rounds:
            return True
        if every is not None:
            return done % every == 0
        return done * self.batch // self.samples > round * self.batch // self.samples

    def _check(self, round: int) -> None:
        if not 0 <= round < self.rounds:
            raise IndexError(f"round {round} of {self.rounds}")

    def _keys(self, start: int, count: int) -> tuple[Indices, Indices]:
        epochs = np.empty(count, dtype=np.int64)
        indices = np.empty(count, dtype=np.int64)
        at = 0
        while at < count:
            epoch, offset = divmod(start + at, self.samples)
            take = min(count - at, self.samples - offset)
            epochs[at : at + take] = epoch
            indices[at : at + take] = epoch_order(self.samples, self.seed, epoch)[offset : offset + take]
            at += take
        return epochs, indices


def validation_micros(samples: int, micro: int) -> tuple[int, ...]:
    """Sizes of the micro-batches that cover every validation sample once, in order; the last one may be shorter."""
    if samples < 0 or micro < 1:
        raise ValueError(f"validation of {samples} samples in micro-batches of {micro}")
    whole, rest = divmod(samples, micro)
    return (micro,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True)
class Pass:
    """One pass over the schedule: a training round, or the validation that follows it.

    Attributes:
        phase: ``TRAINING`` or ``VALIDATION``.
        round: the training round; for validation, the one that it follows.
    """

    phase: int
    round: int


def passes(plan: RoundPlan, start: int, validation: int, every: int | None = None) -> Iterator[Pass]:
    """Yield the passes of a job from the state after ``start`` rounds to its end.

    If validation was due after the last round before ``start``, it comes first: the run that made this state may have
    been lost before its validation ended, and doing it twice gives the same figures.

    Args:
        plan: the rounds.
        start: rounds that are behind us.
        validation: samples of the validation split; none, no validation.
        every: see ``RoundPlan.validation_due``.
    """
    if validation and start > 0 and plan.validation_due(start - 1, every):
        yield Pass(VALIDATION, start - 1)
    for round in range(start, plan.rounds):
        yield Pass(TRAINING, round)
        if validation and plan.validation_due(round, every):
            yield Pass(VALIDATION, round)
