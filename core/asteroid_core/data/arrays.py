"""Arrays as a data set: inputs and targets of a .npz archive, or of two .npy files, mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asteroid_core.data.npz import load_npy, load_npz
from asteroid_core.data.options import Options
from asteroid_core.data.source import (
    Array,
    Indices,
    as_trained,
    check_inputs,
    check_targets,
    counted,
    trained_field,
)
from asteroid_core.errors import InputError

_SLICE = 1 << 16


class Arrays:
    """Inputs and targets in memory or mapped.

    Args:
        name: names the data set in sentences.
        inputs: arrays with one row a sample.
        targets: one row a sample.
        dtype: floats are brought to it.
        scale: inputs are divided by it (and so become floats).
        note: what ``describe`` adds.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Array],
        targets: Array,
        dtype: str,
        scale: float | None = None,
        note: str = "",
    ) -> None:
        self._name, self._x, self._y, self._dtype, self._scale, self._note = name, inputs, targets, dtype, scale, note
        for array in (*inputs, targets):
            if array.ndim == 0 or len(array) != len(targets):
                lengths = ", ".join(str(a.shape[0] if a.ndim else "none") for a in (*inputs, targets))
                raise InputError(
                    f"The arrays of {name} have different numbers of samples: {lengths}.",
                    "Inputs and targets need one row for each sample.",
                )
        if len(targets) == 0:
            raise InputError(f"{name} has no samples.", "Give a data set with at least two.")
        try:
            self.inputs = tuple(trained_field(self._scaled(x[:1]), dtype) for x in inputs)
            self.target = trained_field(targets, dtype)
        except TypeError as error:
            raise InputError(f"{name} cannot be trained on: {error}.", "Use arrays of numbers.") from None
        if scale is None and any(x.dtype == np.uint8 and x.ndim > 2 for x in inputs):
            raise InputError(
                f"{name} has pictures of bytes, which are either numbers to scale or tokens to look up.",
                "Give data.options.scale = 255 for pixels from 0 to 1.",
            )
        self.classes = self._look_at_targets()
        self.vocabulary: int | None = None

    def _look_at_targets(self) -> int | None:
        """Check every target; return the number of classes if they are class numbers."""
        highest = -1
        for start in range(0, len(self._y), _SLICE):
            rows = self._y[start : start + _SLICE]
            check_targets(rows, self._name, np.arange(start, start + len(rows)))
            if self.target.dtype == "int64":
                highest = max(highest, int(rows.max(initial=-1)))
        return highest + 1 if highest >= 0 else None

    def _scaled(self, x: Array) -> Array:
        return x if self._scale is None else x.astype(self._dtype) / np.dtype(self._dtype).type(self._scale)

    def __len__(self) -> int:
        return len(self._y)

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Return inputs and targets."""
        inputs = [as_trained(self._scaled(x[indices]), self._dtype) for x in self._x]
        for array in inputs:
            check_inputs(array, self._name, indices)
        return inputs, as_trained(self._y[indices], self._dtype)

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """What counts in the loss."""
        return counted(self._y[indices])

    def describe(self) -> str:
        """The data set in one line."""
        shapes = ", ".join(str(f) for f in self.inputs)
        kinds = f", {self.classes} classes" if self.classes else f", targets {self.target}"
        return f"{self._name}: {len(self)} samples of {shapes}{kinds}{self._note}"


def open_arrays(path: Path, options: Options, dtype: str) -> Arrays:
    """Open a .npz archive, or a .npy file of inputs.

    Options: ``scale``; of an archive, the keys ``x`` (several inputs as ``a,b``) and ``y``; of a .npy file,
    ``targets``, the file of the targets beside it.

    Raises:
        InputError: missing file, wrong key, lengths that differ, targets that are not finite.
    """
    scale = options.number("scale")
    if path.suffix == ".npz":
        names = tuple(n.strip() for n in options.text("x", "x").split(","))
        target = options.text("y", "y")
        options.done()
        arrays, read = load_npz(path, (*names, target))
        note = f", {' and '.join(read)} in memory (compressed)" if read else ""
        return Arrays(path.name, arrays[:-1], arrays[-1], dtype, scale, note)
    targets = options.text("targets", "y.npy")
    options.done()
    return Arrays(path.name, [load_npy(path)], load_npy(path.parent / targets), dtype, scale)
