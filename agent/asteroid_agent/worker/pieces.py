"""Rows of tensors: cut some out, put pieces together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from asteroid_core.wire.tensor import ITEMSIZE, Tensor


def rows(tensor: Tensor, lo: int, hi: int) -> Tensor:
    """Return rows ``[lo, hi)`` as a view of the same memory."""
    if lo == 0 and hi == tensor.shape[0]:
        return tensor
    size = ITEMSIZE[tensor.dtype] * prod(tensor.shape[1:])
    return Tensor(tensor.dtype, (hi - lo, *tensor.shape[1:]), tensor.data[lo * size : hi * size])


def join(pieces: Sequence[Tensor]) -> Tensor:
    """Put pieces of equal type and row shape together; one piece is returned as it is."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if any(p.dtype != first.dtype or p.shape[1:] != first.shape[1:] for p in pieces):
        raise ValueError(f"cannot join {[(p.dtype, p.shape) for p in pieces]}")
    data = bytearray().join(p.data for p in pieces)
    return Tensor(first.dtype, (sum(p.shape[0] for p in pieces), *first.shape[1:]), memoryview(data))
