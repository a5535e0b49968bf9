"""What flows against the tensors: grants, acknowledgements and requests, and the settings both sides must share.

A *pool* is one stream of tensors: (sender, receiver or stage, kind) in one generation. All numbers are cumulative ("you
may send up to charge N of the pool"), like TCP's, so that a lost, doubled or late message does no harm. A message is a
run of records; each is a Report (receiver to sender) or a Status (sender to receiver: "this is what I have sent, what
have you got?"). Lists are bounded on both sides; what does not fit is told the next time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from asteroid_core.errors import InputError, WireError
from asteroid_core.wire.tensor import KIND_CODE, KINDS, MAX_TENSOR, MIN_CHUNK, Kind

MAGIC = b"ASTC"
VERSION = 1
MAX_ITEMS = 64
"""Ranges of acknowledgements and of requests in one record."""
MAX_RECORDS = 64
MAX_STAGE = 64
ALL_CHUNKS = 0xFFFFFFFF

_HEAD = struct.Struct("<4sB3x")
_RECORD = struct.Struct("<BBBxI")
_REPORT = struct.Struct("<QQIBBxx")
_STATUS = struct.Struct("<QI")
_ACK = struct.Struct("<II")
_MISSING = struct.Struct("<III")


@dataclass(frozen=True)
class Flow:
    """Settings of the flow control; sender and receiver must agree on ``window``.

    Attributes:
        window: charge a sender may have under way in one pool beyond what has landed.
        held: bytes that may lie complete and unreleased in a pool before its credit stops.
        max_tensor: largest tensor that is accepted.
        retry: seconds without progress after which a sender asks for the receiver's state.
        max_retry: longest pause between two such questions.
        max_pools: pools a receiver opens in one generation.
    """

    window: int = 4 << 20
    held: int = 8 << 20
    max_tensor: int = MAX_TENSOR
    retry: float = 0.5
    max_retry: float = 4.0
    max_pools: int = 1024

    def charge(self, length: int) -> int:
        """What a chunk costs: its length, but at least 1/32 window, so that no pool fills a broker's message queue.

        mosquitto keeps 1000 messages for a slow client by default; 32 a pool leaves room for some thirty pools.
        """
        return max(length, self.window // 32)

    def check(self, chunk_bytes: int) -> None:
        """Refuse a window so small that credit could stop between two chunks.

        Raises:
            InputError: the window is smaller than four chunks.
        """
        if self.window < 4 * chunk_bytes:
            raise InputError(
                f"A credit window of {self.window} bytes is too small for chunks of {chunk_bytes}.",
                f"Set it to {4 * chunk_bytes} or more on all devices, or use smaller chunks.",
            )


@dataclass(frozen=True)
class PoolName:
    """Names a pool within the talk of one sender and one receiver; ``stage`` is empty for direct tensors."""

    kind: Kind
    stage: str = ""


@dataclass(frozen=True)
class Report:
    """Receiver to sender.

    Attributes:
        pool: which pool.
        session: the sender's session that the numbers are about.
        grant: charge up to which the sender may send.
        landed: charge that has landed, each chunk counted once.
        base: all transfers below this number are complete.
        complete: (first, last) complete transfers at or above ``base``.
        missing: (transfer, first chunk, last chunk) to be sent again.
    """

    pool: PoolName
    session: int
    grant: int
    landed: int
    base: int
    complete: tuple[tuple[int, int], ...] = ()
    missing: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Status:
    """Sender to receiver: ``sent`` charge, ``transfers`` transfers (the last perhaps in part) are under way."""

    pool: PoolName
    session: int
    sent: int
    transfers: int


def encode(records: list[Report | Status]) -> bytes:
    """Return one credit message; at most MAX_RECORDS records."""
    parts = [_HEAD.pack(MAGIC, VERSION)]
    for record in records[:MAX_RECORDS]:
        stage = record.pool.stage.encode()
        is_report = isinstance(record, Report)
        parts.append(_RECORD.pack(is_report, KIND_CODE[record.pool.kind], len(stage), record.session) + stage)
        if isinstance(record, Report):
            complete, missing = record.complete[:MAX_ITEMS], record.missing[:MAX_ITEMS]
            parts.append(_REPORT.pack(record.grant, record.landed, record.base, len(complete), len(missing)))
            parts.extend(_ACK.pack(*item) for item in complete)
            parts.extend(_MISSING.pack(*item) for item in missing)
        else:
            parts.append(_STATUS.pack(record.sent, record.transfers))
    return b"".join(parts)


def decode(packet: memoryview) -> list[Report | Status]:
    """Read a credit message.

    Raises:
        WireError: anything that ``encode`` would not have made.
    """
    try:
        return list(_decode(packet))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise WireError(
            f"A credit message of {len(packet)} bytes is cut short or not text where it should be."
        ) from error


def _decode(packet: memoryview) -> list[Report | Status]:
    magic, version = _HEAD.unpack_from(packet)
    if magic != MAGIC or version != VERSION:
        raise WireError("A message on a credit topic is not a credit message of this version.")
    records: list[Report | Status] = []
    at = _HEAD.size
    while at < len(packet):
        if len(records) == MAX_RECORDS:
            raise WireError(f"A credit message has more than {MAX_RECORDS} records.")
        type_, kind, stage_bytes, session = _RECORD.unpack_from(packet, at)
        at += _RECORD.size
        if type_ > 1 or kind >= len(KINDS) or stage_bytes > MAX_STAGE or at + stage_bytes > len(packet):
            raise WireError(f"A credit record has type {type_}, kind {kind} and a stage name of {stage_bytes} bytes.")
        pool = PoolName(KINDS[kind], bytes(packet[at : at + stage_bytes]).decode())
        at += stage_bytes
        if type_ == 0:
            records.append(Status(pool, session, *_STATUS.unpack_from(packet, at)))
            at += _STATUS.size
            continue
        grant, landed, base, acks, gaps = _REPORT.unpack_from(packet, at)
        at += _REPORT.size
        if acks > MAX_ITEMS or gaps > MAX_ITEMS:
            raise WireError(f"A credit record lists {acks} and {gaps} ranges, at most {MAX_ITEMS} are allowed.")
        complete = tuple(_ACK.unpack_from(packet, at + i * _ACK.size) for i in range(acks))
        at += acks * _ACK.size
        missing = tuple(_MISSING.unpack_from(packet, at + i * _MISSING.size) for i in range(gaps))
        at += gaps * _MISSING.size
        if any(a > b for a, b in complete) or any(a > b for _, a, b in missing):
            raise WireError("A credit record lists a range that ends before it begins.")
        records.append(Report(pool, session, grant, landed, base, complete, missing))
    return records


def ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Fold a rising list of numbers into (first, last) ranges."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return out


__all__ = [
    "ALL_CHUNKS",
    "MAX_ITEMS",
    "MIN_CHUNK",
    "Flow",
    "PoolName",
    "Report",
    "Status",
    "decode",
    "encode",
    "ranges",
]
