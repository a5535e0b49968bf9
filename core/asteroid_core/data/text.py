"""A text file for language models: its bytes are the tokens, in sequences of equal length that do not overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from asteroid_core.data.options import Options
from asteroid_core.data.source import IGNORED, Array, Field, Indices
from asteroid_core.errors import InputError
from asteroid_core.rounds import STREAM_MASK, raw64

BYTES = 256
MASK = 256
"""Token that stands for a masked byte."""
MASKED_PART = 0.15
_KEY_SAMPLES = 1 << 30
_KEY_EPOCHS = 1 << 24


class Text:
    """Sequences of bytes; ``task`` says what is to be learnt.

    ``next-byte``: each byte's target is the one after it. ``masked-bytes``: 15 % of the bytes are replaced by ``MASK``
    and are the targets; which ones is a function of (seed, epoch, sample index).

    Args:
        path: the file; it is mapped, not read.
        options: ``task`` and ``length`` (bytes of a sequence, default 128).
        seed: of the job.
    """

    def __init__(self, path: Path, options: Options, seed: int) -> None:
        self._path, self._seed = path, seed
        self._task = options.choice("task", ("next-byte", "masked-bytes"))
        self._length = options.integer("length", 128, 2, 65536)
        options.done()
        self._extra = 1 if self._task == "next-byte" else 0
        try:
            size = path.stat().st_size
            if size < self._length + self._extra:
                raise InputError(
                    f"The text {path} has {size} bytes, less than one sequence of {self._length + self._extra}.",
                    "Give a longer text or a smaller data.options.length.",
                )
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise InputError(
                f"The text {path} cannot be read: {error}.", "Check the path and its permissions."
            ) from None
        self._count = (len(self._bytes) - self._extra) // self._length
        self._masked = max(1, round(MASKED_PART * self._length)) if self._task == "masked-bytes" else self._length
        self.inputs = (Field("int64", (self._length,)),)
        self.target = Field("int64", (self._length,))
        self.classes: int | None = BYTES
        self.vocabulary: int | None = BYTES if self._task == "next-byte" else BYTES + 1

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Return tokens and targets."""
        span = np.arange(self._length + self._extra)
        rows = self._bytes[indices[:, None] * self._length + span].astype(np.int64)
        if self._task == "next-byte":
            return [np.ascontiguousarray(rows[:, :-1])], np.ascontiguousarray(rows[:, 1:])
        targets = np.full_like(rows, IGNORED)
        for row, sample in enumerate(indices):
            places = self.masked_places(0 if epochs is None else int(epochs[row]), int(sample))
            targets[row, places] = rows[row, places]
            rows[row, places] = MASK
        return [rows], targets

    def masked_places(self, epoch: int, sample: int) -> Indices:
        """Positions of a sequence that are masked in an epoch: those with the smallest random words."""
        key = STREAM_MASK + epoch % _KEY_EPOCHS * _KEY_SAMPLES + sample % _KEY_SAMPLES
        return np.argsort(raw64(self._seed, key, self._length), kind="stable")[: self._masked].astype(np.int64)

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Each sequence has the same number of targets."""
        return float(len(indices) * self._masked)

    def describe(self) -> str:
        """The data set in one line."""
        return f"{self._path.name}: {self._count} sequences of {self._length} bytes, {self._task}"
