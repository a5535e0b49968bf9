"""The user's own data set: ``package.module:function`` returns something with a length and numbered samples."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

import numpy as np

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

_KEEP_BYTES = 64 << 20
"""Samples that were read to be counted are kept for the batches that follow, up to this size."""

_Sample = tuple[tuple[Array, ...], Array]


class _Numbered(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object: ...


class Dataset:
    """Map-style data set of samples ``(x, y)``; ``x`` may be a tuple or list of several inputs.

    Args:
        name: what the job calls it.
        samples: has ``len`` and ``[i]``; an attribute ``classes`` or ``vocabulary`` (a number, or the list) is used.
        dtype: floats are brought to it.
    """

    def __init__(self, name: str, samples: _Numbered, dtype: str) -> None:
        self._name, self._samples, self._dtype = name, samples, dtype
        self._kept: dict[int, _Sample] = {}
        try:
            self._length = len(samples)
        except TypeError:
            raise InputError(
                f"{name} returns no data set: it has no length.", "Return one with len() and [i]."
            ) from None
        if self._length == 0:
            raise InputError(f"{name} returns a data set without samples.", "It needs at least two.")
        inputs, target = self._first = self._read(0)
        self.inputs = tuple(trained_field(x[None], dtype) for x in inputs)
        self.target = trained_field(target[None], dtype)
        self.classes = _size_of(samples, "classes")
        self.vocabulary = _size_of(samples, "vocabulary")

    def _read(self, index: int) -> _Sample:
        if index in self._kept:
            return self._kept[index]
        try:
            sample = self._samples[index]
        except Exception as error:  # the user's code may raise anything; it ends the job with a sentence
            raise InputError(
                f"Sample {index} of {self._name} cannot be read: {type(error).__name__}: {error}.", "Mend the data set."
            ) from error
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise InputError(f"Sample {index} of {self._name} is not a pair.", "Return (inputs, target).")
        x, y = sample
        try:
            parts = tuple(np.asarray(p) for p in (x if isinstance(x, tuple | list) else (x,)))
            inputs = tuple(as_trained(p[None], self._dtype)[0] for p in parts)
            target = as_trained(np.asarray(y)[None], self._dtype)[0]
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"Sample {index} of {self._name} is not made of numbers: {error}.", "Return arrays or numbers."
            ) from None
        return tuple(np.asarray(p) for p in inputs), np.asarray(target)

    def _same(self, index: int, sample: _Sample) -> _Sample:
        """Refuse a sample that does not look like the first one."""
        if len(sample[0]) != len(self._first[0]):
            raise InputError(
                f"Sample {index} of {self._name} has {len(sample[0])} inputs, the first one {len(self._first[0])}.",
                "All samples need the same inputs.",
            )
        for have, want in zip((*sample[0], sample[1]), (*self._first[0], self._first[1]), strict=True):
            if have.shape != want.shape or have.dtype != want.dtype:
                raise InputError(
                    f"Sample {index} of {self._name} has {have.dtype}{list(have.shape)}, the first one "
                    f"{want.dtype}{list(want.shape)}.",
                    "All samples need the same types and shapes.",
                )
        return sample

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Return inputs and targets."""
        samples = [self._same(int(i), self._read(int(i))) for i in indices]
        inputs = [np.stack([s[0][k] for s in samples]) for k in range(len(self.inputs))]
        targets = np.stack([s[1] for s in samples])
        for array in inputs:
            check_inputs(array, self._name, indices)
        check_targets(targets, self._name, indices)
        return inputs, targets

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """What counts in the loss; integer targets have to be read for that."""
        if self.target.dtype != "int64":
            return float(len(indices))
        total, size = 0.0, 0
        kept: dict[int, _Sample] = {}
        for i in map(int, indices):
            sample = self._same(i, self._read(i))
            total += counted(sample[1][None])
            size += sum(x.nbytes for x in sample[0])
            if size <= _KEEP_BYTES:
                kept[i] = sample
        self._kept = kept
        return total

    def describe(self) -> str:
        """The data set in one line."""
        kinds = f", {self.classes} classes" if self.classes else f", targets {self.target}"
        return f"{self._name}: {len(self)} samples of {', '.join(str(f) for f in self.inputs)}{kinds}"


def _size_of(samples: object, name: str) -> int | None:
    value = getattr(samples, name, None)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return len(value) if isinstance(value, list | tuple) else None


def open_dataset(name: str, options: Mapping[str, str | int | float | bool], dtype: str) -> Dataset:
    """Import ``package.module:function`` and call it with the options.

    Raises:
        InputError: it cannot be imported, raises, or returns no data set.
    """
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise InputError(
            f"The data source {name} cannot be imported: {error}.",
            "Put the module beside the job file or on PYTHONPATH.",
        ) from error
    except AttributeError:
        raise InputError(f"{module_name} has no {function_name}.", "Write package.module:function.") from None
    except Exception as error:  # importing runs the user's code
        raise InputError(f"Importing {module_name} failed: {type(error).__name__}: {error}.", "Mend it.") from error
    if not callable(function):
        raise InputError(f"{name} is not a function.", "It is called with data.options and returns a data set.")
    try:
        samples = function(**options)
    except Exception as error:  # the user's code may raise anything; it ends the job with a sentence
        raise InputError(
            f"{name} failed: {type(error).__name__}: {error}.", "It is called with data.options as keywords."
        ) from error
    return Dataset(name, samples, dtype)
