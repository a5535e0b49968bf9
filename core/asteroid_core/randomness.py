"""Random numbers that belong to what they are for, not to who draws them.

A dropout mask is a pure function of (job seed, epoch, sample index, graph node), by Philox with that as its key and
counter. So the result does not depend on how a micro-batch is shared, moved or replayed, nor on the backend.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from asteroid_core.program import Dropout, StageProgram, TensorSpec
from asteroid_core.wire.tensor import Tensor

Array = npt.NDArray[np.generic]


def dropout_mask(
    dropout: Dropout,
    seed: int,
    epochs: Sequence[int] | npt.NDArray[np.integer],
    samples: Sequence[int] | npt.NDArray[np.integer],
) -> Array:
    """Return the mask of some samples, shape (samples, *dropout.shape): 0, or 1/(1-p)."""
    keep = np.uint32(min(2**32 - 1, round((1.0 - dropout.p) * 2**32)))
    count = prod(dropout.shape)
    scale = np.dtype(dropout.dtype).type(1.0 / (1.0 - dropout.p))
    out = np.empty((len(samples), count), dropout.dtype)
    for row, (epoch, sample) in enumerate(zip(epochs, samples, strict=True)):
        # the counter's low word is left to the draws, so that no two keys can overlap
        source = np.random.Philox(key=(seed << 32) | dropout.id, counter=(int(epoch) << 192) | (int(sample) << 128))
        words = source.random_raw((count + 1) // 2).view(np.uint32)[:count]
        out[row] = np.where(words < keep, scale, scale.dtype.type(0))
    return out.reshape(len(samples), *dropout.shape)


PATTERN = 65_521
"""Numbers drawn for one tensor. A prime, so that rows of a matrix begin at different places of the pattern."""


def _generator(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode())))


def _floats(name: str, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Array:
    """Seeded numbers around zero; large tensors repeat a pattern, since drawing millions would delay a recovery."""
    count = prod(shape)
    drawn = (_generator(name).random(min(count, PATTERN)) - 0.5) * scale
    return np.resize(np.asarray(drawn, dtype), count).reshape(shape)


def example_state(program: StageProgram) -> dict[str, Array]:
    """Return seeded weights for measuring and for the known-answer test, small enough that nothing overflows."""
    return {t.name: _example(t) for t in program.tensors}


def _example(spec: TensorSpec) -> Array:
    if not spec.dtype.startswith("float"):
        return np.zeros(spec.shape, spec.dtype)
    if spec.role == "statistic":
        return np.ones(spec.shape, spec.dtype) if spec.name.endswith("var") else np.zeros(spec.shape, spec.dtype)
    fan = prod(spec.shape[1:]) if len(spec.shape) > 1 else 1
    values = _floats(spec.name, spec.shape, spec.dtype, 2.0 / np.sqrt(fan))
    if len(spec.shape) == 1 and "weight" in spec.name:
        return np.asarray(values + np.dtype(spec.dtype).type(1.0))  # of a normalisation
    return values


def example_inputs(program: StageProgram, rows: int) -> list[Tensor]:
    """Return seeded inputs of ``rows`` samples; integer inputs are zero or one, valid for any table."""
    out = []
    for port in program.inputs:
        shape = (rows, *port.shape)
        if port.dtype.startswith("float"):
            out.append(Tensor.of_numpy(_floats(f"input {port.name}", shape, port.dtype)))
        else:
            values = _generator(f"input {port.name}").integers(0, 2, shape).astype(port.dtype)
            out.append(Tensor.of_numpy(values))
    return out


def example_targets(program: StageProgram, rows: int) -> Tensor:
    """Return seeded targets that fit the outputs and the loss of a last stage."""
    port = program.outputs[0]
    if program.loss is not None and program.loss.kind == "mse":
        return Tensor.of_numpy(_floats("targets", (rows, *port.shape), port.dtype))
    return Tensor.of_numpy(_generator("targets").integers(0, port.shape[-1], (rows, *port.shape[:-1])))
