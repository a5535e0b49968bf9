"""Named tensors in one buffer: what the safetensors library reads and writes, and no damage passes for one."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from asteroid_core.errors import AsteroidError, WireError
from asteroid_core.wire.safe import (
    MAX_DIMS,
    MAX_HEADER,
    MAX_NAMES,
    Array,
    bytes_of,
    layout,
    pack,
    pack_names,
    read_names,
    unpack,
)

TYPES = (
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and _encodable(name))


def _encodable(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


@st.composite
def _arrays(draw: st.DrawFn) -> Array:
    """Any type, up to three dimensions (also empty ones), either byte order, sometimes not contiguous."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    raw = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 2, (*shape, dtype.itemsize), np.uint8)
    array: Array = raw.reshape(-1).view(dtype).reshape(shape)
    if draw(st.booleans()):
        array = array.astype(dtype.newbyteorder(">"))
    return array.T if draw(st.booleans()) else array


TENSORS = st.dictionaries(NAMES, _arrays(), max_size=6)
EXAMPLE: dict[str, Array] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.array(7, np.int64),
    "mask": np.array([True, False, True]),
    "none": np.zeros((0, 4), np.float16),
}


def _equal(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        found = other[name]
        assert (found.dtype.name, found.shape) == (array.dtype.name, array.shape), name
        assert bytes(bytes_of(found)) == bytes(bytes_of(array)), name


def _made(header: object, body: bytes = b"") -> memoryview:
    """A buffer with this head."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + body)


def _row(dtype: object = "F32", shape: object = (2,), lo: object = 0, hi: object = 8, **more: object) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [lo, hi], **more}


# Round trips


@given(TENSORS)
def test_what_is_packed_is_unpacked(tensors: dict[str, Array]) -> None:
    _equal(tensors, unpack(pack(tensors)))


@given(TENSORS)
def test_the_library_reads_what_is_packed(tensors: dict[str, Array]) -> None:
    _equal(tensors, load(bytes(pack(tensors))))


@given(TENSORS)
def test_what_the_library_writes_is_unpacked(tensors: dict[str, Array]) -> None:
    native = {name: np.array(a, dtype=a.dtype.newbyteorder("="), order="C") for name, a in tensors.items()}
    _equal(native, unpack(memoryview(save(native))))


@given(TENSORS)
def test_a_file_in_blocks_is_the_buffer(tensors: dict[str, Array]) -> None:
    head, order = layout(tensors)
    assert sorted(order) == sorted(tensors)
    assert b"".join([head, *(bytes_of(tensors[name]) for name in order)]) == bytes(pack(tensors))


@given(TENSORS)
def test_every_tensor_begins_where_its_type_may(tensors: dict[str, Array]) -> None:
    head, order = layout(tensors)
    at = len(head)
    for name in order:
        assert at % tensors[name].dtype.itemsize == 0, "a processor reads aligned numbers faster"
        at += tensors[name].nbytes


def test_the_order_of_the_names_does_not_matter() -> None:
    assert pack(EXAMPLE) == pack(dict(reversed(EXAMPLE.items())))


def test_unpacking_gives_views_that_cannot_be_written() -> None:
    data = pack(EXAMPLE)
    found = unpack(data)
    whole = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(found[name], whole) for name in ("w", "n", "mask"))
    assert not any(array.flags.writeable for array in found.values())


def test_packing_takes_a_picture() -> None:
    array = np.zeros(3)
    data = pack({"w": array})
    array += 1
    assert unpack(data)["w"].tolist() == [0, 0, 0]


def test_contiguous_little_endian_elements_are_not_copied() -> None:
    array = np.arange(4, dtype="<f4")
    assert np.shares_memory(np.frombuffer(bytes_of(array), np.uint8), array)
    assert bytes(bytes_of(array.astype(">f4"))) == bytes(bytes_of(array))


def test_bfloat16_words_keep_their_type_in_a_file() -> None:
    words = np.array([0x3F80, 0x4000], np.uint16)
    tensors: dict[str, Array] = {"b": words, "u": words, "f": np.ones(1)}
    head, order = layout(tensors, bfloat16=("b", "f", "nowhere"), meta={"format": "pt"})
    header = json.loads(head[8:])
    kinds = {name: header[name]["dtype"] for name in tensors}
    assert kinds == {"b": "BF16", "u": "U16", "f": "F64"}, "only words of 16 bits can be bfloat16 numbers"
    assert header["__metadata__"] == {"format": "pt"}
    data = memoryview(b"".join([head, *(bytes_of(tensors[name]) for name in order)]))
    _equal(tensors, unpack(data))


@pytest.mark.parametrize("array", [np.zeros(2, np.complex64), np.array(["a"]), np.zeros(1, "M8[s]")])
def test_a_type_that_the_format_does_not_have_is_named(array: Array) -> None:
    with pytest.raises(AsteroidError, match=r"The tensor layer\.w has type"):
        pack({"layer.w": array})


# Damage


@given(TENSORS, st.data())
def test_a_part_of_a_buffer_is_refused(tensors: dict[str, Array], data: st.DataObject) -> None:
    whole = pack(tensors)
    with pytest.raises(WireError):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError):
        unpack(memoryview(bytes(whole) + b" "))


@settings(max_examples=300)
@given(TENSORS, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_buffer_is_refused_or_holds_no_more_than_it_has(
    tensors: dict[str, Array], damage: list[tuple[int, int]]
) -> None:
    raw = bytearray(pack(tensors))
    for place, byte in damage:
        raw[place % len(raw)] = byte
    try:
        found = unpack(memoryview(raw))
    except WireError:
        return
    assert sum(array.nbytes for array in found.values()) <= len(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(raw: bytes) -> None:
    try:
        found = unpack(memoryview(raw))
    except WireError:
        return
    assert sum(array.nbytes for array in found.values()) <= len(raw)


@given(
    st.dictionaries(
        st.text(max_size=3).filter(_encodable),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "F8", "", 3, None]),
                "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), st.none(), st.text(max_size=2)),
                "data_offsets": st.lists(st.integers(-1, 12), max_size=3),
            }
        ),
        max_size=3,
    ),
    st.binary(max_size=16),
)
def test_a_head_that_is_believed_fits_the_body(header: dict[str, Any], body: bytes) -> None:
    try:
        found = unpack(_made(header, body))
    except WireError:
        return
    assert sum(array.nbytes for array in found.values()) == len(body)


BODY = b"8" * 8
DAMAGED: dict[str, memoryview] = {
    "nothing": memoryview(b""),
    "nothing, of a huge shape": _made({"a": _row(dtype="F64", shape=(0, 2**40, 2**40), hi=0)}),
    "a name that no message can carry": _made({"\ud800": 1}),
    "half a length": memoryview(b"\x01\0\0\0"),
    "a head beyond the buffer": memoryview((100).to_bytes(8, "little") + b"{}"),
    "the longest head": memoryview((2**64 - 1).to_bytes(8, "little") + b"{}"),
    "not JSON": _made(b"{"),
    "not text": _made(b"\xff\xfe\xfd"),
    "deep JSON": _made(b"[" * 100_000),
    "a number of many digits": _made(b'{"a":' + b"9" * 5000 + b"}"),
    "a list": _made([]),
    "a row that is a number": _made({"a": 1}),
    "a row without offsets": _made({"a": {"dtype": "F32", "shape": [2]}}, BODY),
    "a row with more": _made({"a": _row(more=1)}, BODY),
    "a type that is unknown": _made({"a": _row(dtype="F128")}, BODY),
    "a type that is a list": _made({"a": _row(dtype=["F32"])}, BODY),
    "another type": _made({"a": _row(dtype="F64")}, BODY),
    "a negative size": _made({"a": _row(shape=(-2,))}, BODY),
    "two negative sizes": _made({"a": _row(shape=(-1, -2))}, BODY),
    "a broken size": _made({"a": _row(shape=(2.0,))}, BODY),
    "a size that is a truth": _made({"a": _row(shape=(True, 2))}, BODY),
    "a size without an end": _made({"a": _row(shape=(2**48,))}, BODY),
    "a large size": _made({"a": _row(shape=(2**47,))}, BODY),
    "a large size that is claimed to be there": _made({"a": _row(shape=(2**45,), hi=2**47)}, BODY),
    "too many sizes": _made({"a": _row(shape=(*[1] * MAX_DIMS, 2))}, BODY),
    "no shape": _made({"a": _row(shape=2)}, BODY),
    "negative offsets": _made({"a": _row(lo=-8, hi=0)}, BODY),
    "offsets that run back": _made({"a": _row(lo=8, hi=0)}, BODY),
    "one offset": _made({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, BODY),
    "offsets that overlap": _made({"a": _row(), "b": _row(shape=(1,), lo=4, hi=8)}, BODY),
    "the same bytes twice": _made({"a": _row(), "b": _row()}, BODY),
    "a gap": _made({"a": _row(shape=(1,), hi=4), "b": _row(shape=(1,), lo=8, hi=12)}, BODY + b"8888"),
    "bytes before the first": _made({"a": _row(shape=(1,), lo=4, hi=8)}, BODY),
    "bytes behind the last": _made({"a": _row(shape=(1,), hi=4)}, BODY),
    "bytes of nobody": _made({}, BODY),
    "a body that is too short": _made({"a": _row()}, BODY[:7]),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_was_never_packed_is_refused_without_memory_for_its_claims(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            unpack(DAMAGED[what])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 300


def test_a_head_over_the_limit_is_refused_unread() -> None:
    raw = memoryview((MAX_HEADER + 1).to_bytes(8, "little") + b" " * (MAX_HEADER + 1))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="claims a head"):
            unpack(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_name_does_not_make_a_long_sentence() -> None:
    with pytest.raises(WireError) as caught:
        unpack(_made({"x" * 10_000: 1}))
    assert len(caught.value.what) < 200


# Names


@given(st.lists(st.text(max_size=12)))
def test_names_that_are_packed_are_read(names: list[str]) -> None:
    assert read_names(memoryview(pack_names(names))) == tuple(names)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'"a"', b"[1]", b'["a", null]', b'[["a"]]', b"[", b"[" * 100_000, b"\xff", b"[9" * 3000]
)
def test_what_is_no_list_of_names_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError, match="list of names"):
        read_names(memoryview(raw))


def test_a_list_of_names_over_the_limit_is_refused() -> None:
    raw = pack_names(["x" * (MAX_NAMES - 4)])
    assert len(raw) == MAX_NAMES
    assert len(read_names(memoryview(raw))) == 1
    with pytest.raises(WireError, match="over the limit"):
        read_names(memoryview(raw + b" "))
