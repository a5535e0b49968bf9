from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asteroid_core.errors import WireError
from asteroid_core.wire import credit
from asteroid_core.wire.credit import PoolName, Report, Status
from asteroid_core.wire.tensor import DTYPES, HEADER_BYTES, MIN_CHUNK, Kind, Tag, Tensor, chunk_count, pack, unpack

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TAGS = st.builds(Tag, st.sampled_from(Kind), U32, U32, U32, U32, st.integers(0, 1))


@settings(max_examples=100, deadline=None)
@given(
    tag=TAGS,
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 12), max_size=4),
    chunk=st.integers(MIN_CHUNK, 9000),
    transfer=U64,
)
def test_cutting_and_joining_gives_back_the_tensor(
    tag: Tag, dtype: tuple[str, int], shape: list[int], chunk: int, transfer: int
) -> None:
    size = int(np.prod(shape, dtype=np.int64)) * dtype[1]
    tensor = Tensor(dtype[0], tuple(shape), memoryview(np.random.default_rng(1).bytes(size)))
    out = bytearray(size)
    for i in range(chunk_count(size, chunk)):
        head, body = pack(tag, tensor, transfer, i, chunk)
        header, data = unpack(memoryview(head + bytes(body)))
        assert (header.tag, header.dtype, header.shape, header.transfer) == (tag, dtype[0], tuple(shape), transfer)
        out[header.offset : header.offset + len(data)] = data
    assert bytes(out) == bytes(tensor.data)


@settings(max_examples=150, deadline=None)
@given(flip=st.integers(0, 8 * (HEADER_BYTES + 64) - 1), length=st.integers(0, HEADER_BYTES + 64))
def test_a_changed_bit_or_a_cut_is_always_noticed(flip: int, length: int) -> None:
    head, body = pack(Tag(Kind.ACT, 1), Tensor.of_bytes(bytes(range(64))), 5, 0, 4096)
    packet = bytearray(head + bytes(body))
    packet[flip // 8] ^= 1 << flip % 8
    with pytest.raises(WireError):
        unpack(memoryview(packet))
    whole = head + bytes(body)
    if length < len(whole):
        with pytest.raises(WireError):
            unpack(memoryview(whole[:length]))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_foreign_bytes_raise_nothing_but_a_wire_error(data: bytes) -> None:
    for prefix in (b"", b"ASTR\x01", b"ASTC\x01\0\0\0"):
        for read in (unpack, credit.decode):
            try:
                read(memoryview(prefix + data))
            except WireError:
                continue


POOLS = st.builds(PoolName, st.sampled_from(Kind), st.from_regex(r"[a-z0-9]{0,20}", fullmatch=True))
PAIRS = st.tuples(U32, U32).map(lambda p: (min(p), max(p)))
REPORTS = st.builds(
    Report,
    POOLS,
    U32,
    U64,
    U64,
    U32,
    st.lists(PAIRS, max_size=5).map(tuple),
    st.lists(st.tuples(U32, PAIRS).map(lambda t: (t[0], *t[1])), max_size=5).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(REPORTS, st.builds(Status, POOLS, U32, U64, U32)), max_size=6))
def test_credit_records_survive_the_wire(records: list[Report | Status]) -> None:
    assert credit.decode(memoryview(credit.encode(records))) == records
