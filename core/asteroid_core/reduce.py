"""Reduction inside a device group: reduce-scatter, then gather. Pure: ranges and the order of addition.

Each member owns one slice of the flat vector; the others send it their values for that slice, it adds them in the
plan's device order (never in order of arrival, so the result does not depend on timing) and multicasts the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.floating]


def slices(length: int, members: int) -> tuple[tuple[int, int], ...]:
    """Cut ``length`` elements into one contiguous slice a member; sizes differ by at most one."""
    size, more = divmod(length, members)
    out, at = [], 0
    for index in range(members):
        end = at + size + (index < more)
        out.append((at, end))
        at = end
    return tuple(out)


def add_in_order(parts: Sequence[Vector]) -> Vector:
    """Add equally long vectors from the first to the last.

    Raises:
        ValueError: lengths differ, or nothing was given.
    """
    if not parts or any(p.shape != parts[0].shape for p in parts):
        raise ValueError(f"cannot add vectors of shapes {[p.shape for p in parts]}")
    total: Vector = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
