"""The tensor codec: a fixed header and raw little-endian bytes, cut into chunks.

In: arrays; out: (header, slice of the array's own memory) pairs, and back. No socket, no clock, no torch. Nothing that
a header claims is believed before it has been checked, and nothing is allocated for a chunk that does not pass.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np
import numpy.typing as npt

from asteroid_core.errors import InputError, WireError


class Kind(str, Enum):
    """Class of a tensor; the value is the last level of its topic. The order is the code on the wire."""

    FEED = "feed"
    TARGET = "target"
    ACT = "act"
    GRAD = "grad"
    REDUCE = "reduce"
    GATHER = "gather"
    STATE = "state"
    PROGRAM = "program"
    PROBE = "probe"
    RESULT = "result"
    VOTE = "vote"
    CREDIT = "credit"
    ASK = "ask"
    COPY = "copy"


KINDS: tuple[Kind, ...] = tuple(Kind)
KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
KIND_BY_NAME = {kind.value: kind for kind in KINDS}

DTYPES: tuple[tuple[str, int], ...] = (
    ("float64", 8),
    ("float32", 4),
    ("float16", 2),
    ("bfloat16", 2),
    ("int64", 8),
    ("int32", 4),
    ("int16", 2),
    ("int8", 1),
    ("uint8", 1),
    ("bool", 1),
)
"""Name and bytes of an element; the position is the code on the wire, so only append."""

DTYPE_CODE = {name: code for code, (name, _) in enumerate(DTYPES)}
ITEMSIZE = dict(DTYPES)

TRAINING = 0
VALIDATION = 1

ASK_STATE, ASK_PROGRAM = 0, 1
"""What an ``ask`` wants: its index."""
CHECKPOINT, ANSWER = 0, 1
"""Why a ``state`` is sent: its index."""

MAGIC = b"ASTR"
VERSION = 1
MAX_DIMS = 8
MAX_TENSOR = 1 << 30
MIN_CHUNK = 1 << 10
"""Chunks, but for the last of a tensor, are at least this long: bounds what one tensor's bookkeeping can cost."""
MAX_CHUNKS = 1 << 20
_ROW = 2048

_FORMAT = struct.Struct("<4sBBBBB3x8IIIIIQIIQQI")
HEADER_BYTES = _FORMAT.size


@dataclass(frozen=True)
class Tag:
    """What a tensor is for.

    Attributes:
        kind: class of tensor.
        generation: generation of the plan.
        round: round of the job.
        micro: micro-batch in the round.
        index: tensor within the micro-batch (or within a state, a program ...).
        phase: TRAINING or VALIDATION.
    """

    kind: Kind
    generation: int
    round: int = 0
    micro: int = 0
    index: int = 0
    phase: int = TRAINING


@dataclass(frozen=True)
class Tensor:
    """Elements in memory as they go over the wire.

    Attributes:
        dtype: name from DTYPES.
        shape: sizes, at most eight.
        data: the elements, C-contiguous, little-endian, as a flat view of bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        size = ITEMSIZE.get(self.dtype)
        if size is None:
            raise InputError(
                f"Tensors of type {self.dtype!r} cannot be sent.", "Convert to one of " + ", ".join(ITEMSIZE) + "."
            )
        if len(self.shape) > MAX_DIMS:
            raise InputError(f"A tensor of {len(self.shape)} dimensions cannot be sent.", "Reshape it to at most 8.")
        if self.data.format != "B" or self.data.ndim != 1 or not self.data.c_contiguous:
            object.__setattr__(self, "data", self.data.cast("B"))
        if prod(self.shape) * size != self.data.nbytes:
            raise InputError(f"{self.data.nbytes} bytes are not a {self.dtype} tensor of shape {self.shape}.")

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.data.nbytes

    @classmethod
    def of_numpy(cls, array: npt.NDArray[np.generic], dtype: str | None = None) -> Tensor:
        """Wrap an array, without a copy if it is contiguous and little-endian; bfloat16 comes as a view of uint16."""
        name = dtype or array.dtype.name
        flat = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if name == "bfloat16" and array.dtype.itemsize != 2:
            raise InputError("bfloat16 is sent as a view of uint16.", "Pass array.view('uint16').")
        return cls(name, tuple(array.shape), flat.reshape(-1).view(np.uint8).data)

    @classmethod
    def of_bytes(cls, data: bytes | bytearray | memoryview) -> Tensor:
        """Wrap plain bytes (a stage program, a JSON result)."""
        view = memoryview(data).cast("B")
        return cls("uint8", (view.nbytes,), view)

    def numpy(self) -> npt.NDArray[np.generic]:
        """View as an array over the same memory; bfloat16 comes as uint16."""
        name = "uint16" if self.dtype == "bfloat16" else self.dtype
        return np.frombuffer(self.data, dtype=np.dtype(name).newbyteorder("<")).reshape(self.shape)


@dataclass(frozen=True)
class Header:
    """All that one chunk says about itself, checked."""

    tag: Tag
    dtype: str
    shape: tuple[int, ...]
    transfer: int
    chunk: int
    chunks: int
    total: int
    offset: int
    chunk_bytes: int
    """Length of every chunk of the tensor but the last."""

    def same_tensor(self, other: Header) -> bool:
        """Whether two chunks may belong to one tensor."""
        return (
            self.tag == other.tag
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.total == other.total
            and self.chunks == other.chunks
            and self.chunk_bytes == other.chunk_bytes
        )


def chunk_count(total: int, chunk_bytes: int) -> int:
    """Chunks of a tensor; an empty tensor has one empty chunk."""
    return max(1, -(-total // chunk_bytes))


def pack(tag: Tag, tensor: Tensor, transfer: int, chunk: int, chunk_bytes: int) -> tuple[bytes, memoryview]:
    """Return the header and the body of one chunk; the body is a view of the tensor's own memory."""
    total = tensor.nbytes
    offset = chunk * chunk_bytes
    body = tensor.data[offset : offset + chunk_bytes]
    fields = (
        MAGIC,
        VERSION,
        KIND_CODE[tag.kind],
        DTYPE_CODE[tensor.dtype],
        tag.phase,
        len(tensor.shape),
        *tensor.shape,
        *(0,) * (MAX_DIMS - len(tensor.shape)),
        tag.generation,
        tag.round,
        tag.micro,
        tag.index,
        transfer,
        chunk,
        chunk_count(total, chunk_bytes),
        total,
        offset,
    )
    bare = _FORMAT.pack(*fields, 0)
    return bare[:-4] + checksum_of(bare, body).to_bytes(4, "little"), body


def unpack(packet: memoryview, max_tensor: int = MAX_TENSOR) -> tuple[Header, memoryview]:
    """Check one chunk and return its header and its body (a view of ``packet``).

    Raises:
        WireError: anything that ``pack`` would not have made.
    """
    if len(packet) < HEADER_BYTES:
        raise WireError(f"A tensor chunk of {len(packet)} bytes is shorter than its header.")
    fields = _FORMAT.unpack_from(packet)
    magic, version, kind, dtype, phase, ndim = fields[:6]
    generation, round_, micro, index, transfer, chunk, chunks, total, offset, checksum = fields[14:]
    if magic != MAGIC:
        raise WireError("A message on a tensor topic does not begin with the tensor mark.")
    if version != VERSION:
        raise WireError(f"A tensor chunk has version {version}, this program reads {VERSION}.", "Update both devices.")
    if kind >= len(KINDS) or dtype >= len(DTYPES) or phase > VALIDATION or ndim > MAX_DIMS:
        raise WireError(f"A tensor chunk has an unknown kind {kind}, type {dtype}, phase {phase} or rank {ndim}.")
    shape = fields[6 : 6 + ndim]
    name, size = DTYPES[dtype]
    if any(fields[6 + ndim : 14]) or prod(shape) * size != total:
        raise WireError(f"A tensor chunk of shape {shape} and type {name} claims {total} bytes.")
    if total > max_tensor:
        raise WireError(f"A tensor of {total} bytes is larger than the limit of {max_tensor}.")
    body = packet[HEADER_BYTES:]
    chunk_bytes = _chunk_bytes(len(body), chunk, chunks, total, offset)
    bare = bytes(packet[: HEADER_BYTES - 4]) + bytes(4)
    if checksum_of(bare, body) != checksum:
        raise WireError("A tensor chunk was damaged on its way: its checksum is wrong.")
    tag = Tag(KINDS[kind], generation, round_, micro, index, phase)
    return Header(tag, name, shape, transfer, chunk, chunks, total, offset, chunk_bytes), body


def checksum_of(header: bytes, body: memoryview) -> int:
    """Return the checksum of a chunk: CRC-32 of its header, of the body folded to one row, and of the body's rest.

    The body's rows of 2 KiB are added up as 64-bit words, column by column: every change of one word shows, at the
    speed of memory; a CRC of all of it would take half of a slow processor's time for the link. Networks have checksums
    of their own; this one is there for faults in programs and memory.
    """
    whole = len(body) // _ROW * _ROW
    checksum = zlib.crc32(header)
    if whole:
        words = np.frombuffer(body[:whole], "<u8").reshape(-1, _ROW // 8)
        checksum = zlib.crc32(np.add.reduce(words, axis=0).astype("<u8", copy=False).tobytes(), checksum)
    return zlib.crc32(body[whole:], checksum)


def _chunk_bytes(length: int, chunk: int, chunks: int, total: int, offset: int) -> int:
    """Return the tensor's chunk length if position, count and length agree."""
    wrong = WireError(f"Chunk {chunk} of {chunks} with {length} bytes at {offset} does not fit a tensor of {total}.")
    if not 1 <= chunks <= MAX_CHUNKS or chunk >= chunks or offset + length > total:
        raise wrong
    if chunks == 1:
        if length != total or offset:
            raise wrong
        return max(length, 1)
    last = chunk == chunks - 1
    size = offset // (chunks - 1) if last else length
    if size < MIN_CHUNK or offset != chunk * size or chunk_count(total, size) != chunks:
        raise wrong
    if last and offset + length != total:
        raise wrong
    return size
