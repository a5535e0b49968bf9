"""Named tensors in one piece of memory, in the safetensors format: a snapshot is what is sent and what is written.

``pack`` copies each tensor once, into its final place; ``unpack`` gives views and copies nothing. The library's own
functions copy two to three times, which a device that holds snapshots beside its stage cannot spare. What they write,
the library reads, and the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from asteroid_core.errors import AsteroidError, WireError

Array = npt.NDArray[np.generic]

MAX_HEADER = 16 << 20
"""Longest header that is read: some hundred thousand names."""
MAX_NAMES = 1 << 20
"""Longest list of names, in bytes."""
MAX_DIMS = 16

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_TYPES = {code: np.dtype(name) for name, code in _NAMES.items()} | {"BF16": np.dtype("uint16")}


def layout(
    tensors: Mapping[str, Array], bfloat16: Collection[str] = (), meta: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """Return the head of a file (length and padded JSON) and the names in the order in which their bytes follow.

    Args:
        tensors: what it holds.
        bfloat16: names of uint16 tensors whose words are bfloat16 numbers.
        meta: kept in the head.

    Raises:
        AsteroidError: a tensor of a type that the format does not have.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(meta)} if meta else {}
    at = 0
    for name in order:
        array = tensors[name]
        kind = "BF16" if name in bfloat16 and array.dtype == np.uint16 else _NAMES.get(array.dtype.name)
        if kind is None:
            raise AsteroidError(f"The tensor {name} has type {array.dtype}, which cannot be kept.", "Use numbers.")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text: bytes = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def bytes_of(array: Array) -> memoryview:
    """View the elements as little-endian bytes; copies only what is not laid out so."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return little.reshape(-1).view(np.uint8).data


def pack(tensors: Mapping[str, Array]) -> memoryview:
    """Copy tensors into one buffer.

    Raises:
        AsteroidError: a tensor of a type that the format does not have.
    """
    head, order = layout(tensors)
    out = np.empty(len(head) + sum(tensors[name].nbytes for name in order), np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    at = len(head)
    for name in order:
        array = tensors[name]
        place = out[at : at + array.nbytes].view(array.dtype.newbyteorder("<")).reshape(array.shape)
        place[...] = array
        at += array.nbytes
    return out.data


def unpack(data: memoryview) -> dict[str, Array]:
    """View the tensors of a buffer, after checking that they are all there and do not overlap; read-only.

    Raises:
        WireError: anything that ``pack`` (or the library) would not have made.
    """
    if len(data) < 8:
        raise WireError(f"A state of {len(data)} bytes is shorter than its head.")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, len(data) - 8):
        raise WireError(f"A state of {len(data)} bytes claims a head of {length}.")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise WireError("The head of a state is not JSON.") from None
    if not isinstance(header, dict):
        raise WireError("The head of a state is not a table.")
    header.pop("__metadata__", None)
    body = data[8 + length :].toreadonly()
    places = {name: _place(name, entry) for name, entry in header.items()}
    at = 0
    for name, (_, _, lo, hi) in sorted(places.items(), key=lambda item: item[1][2:]):
        if lo != at:
            raise WireError(f"The tensor {name[:80]!a} of a state begins at {lo}, not at {at}.")
        at = hi
    if at != len(body):
        raise WireError(f"A state has {len(body)} bytes behind its head, its tensors have {at}.")
    return {
        name: np.frombuffer(body[lo:hi], dtype.newbyteorder("<")).reshape(shape)
        for name, (dtype, shape, lo, hi) in places.items()
    }


def _place(name: str, entry: object) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    """Type, shape and byte range of one row of the head, checked."""
    wrong = WireError(f"The head of a state says nothing sensible of {name[:80]!a}.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES or not _whole(shape) or not _whole(offsets):
        raise wrong
    if len(shape) > MAX_DIMS or len(offsets) != 2:
        raise wrong
    lo, hi = offsets
    dtype = _TYPES[kind]
    if hi - lo != prod(shape) * dtype.itemsize or prod(d or 1 for d in shape) * dtype.itemsize >= 1 << 63:
        raise wrong
    return dtype, tuple(shape), lo, hi


def _whole(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 48 for v in values)


def pack_names(names: Sequence[str]) -> bytes:
    """Write a list of names down."""
    return json.dumps(list(names), separators=(",", ":")).encode()


def read_names(data: memoryview) -> tuple[str, ...]:
    """Read a list of names.

    Raises:
        WireError: too long, or not a list of names.
    """
    if len(data) > MAX_NAMES:
        raise WireError(f"A list of names of {len(data)} bytes is over the limit of {MAX_NAMES}.")
    try:
        names = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise WireError("A list of names is not JSON.") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WireError("A list of names is not a list of names.")
    return tuple(names)
