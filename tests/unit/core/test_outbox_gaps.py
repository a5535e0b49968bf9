"""Copies of snapshots go in the gaps: only when nothing else may go."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.flow_world import Weather, World

from asteroid_core.wire.credit import Flow, PoolName, Report
from asteroid_core.wire.outbox import GAPS, Outbox, Outgoing, Route
from asteroid_core.wire.tensor import Kind, Tag, Tensor

CHUNK = 1024
FLOW = Flow(window=4 * CHUNK, held=8 * CHUNK, max_tensor=1 << 20)
OTHERS = tuple(kind for kind in Kind if kind not in GAPS and kind is not Kind.CREDIT)


def _outbox() -> Outbox:
    outbox = Outbox(7, FLOW, CHUNK)
    outbox.reset(1)
    return outbox


def _put(outbox: Outbox, kind: Kind, chunks: int, dst: str = "b") -> None:
    outbox.put(Route((dst,)), Tag(kind, 1), Tensor.of_bytes(bytes(chunks * CHUNK)), 0.0)


def _drain(outbox: Outbox) -> list[Kind]:
    out = []
    while (chunk := outbox.next()) is not None:
        out.append(chunk.kind)
    return out


def _report(outbox: Outbox, kind: Kind, landed: int, base: int = 0, again: int | None = None) -> Report:
    """So many chunks have landed (and as many may go again); one of the first transfer is missing."""
    missing = () if again is None else ((0, again, again),)
    return Report(
        PoolName(kind), outbox.session, FLOW.window + landed * CHUNK, landed * CHUNK, base=base, missing=missing
    )


def test_only_copies_are_patient() -> None:
    assert {Kind.COPY} == GAPS


@pytest.mark.parametrize("kind", OTHERS)
def test_a_copy_waits_for_every_other_kind(kind: Kind) -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 2)
    _put(outbox, kind, 3)
    assert _drain(outbox) == [kind] * 3 + [Kind.COPY] * 2


def test_what_comes_while_a_copy_goes_goes_first() -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 3)
    first = outbox.next()
    assert first is not None
    assert first.kind is Kind.COPY
    _put(outbox, Kind.GRAD, 2, dst="c")
    assert _drain(outbox) == [Kind.GRAD, Kind.GRAD, Kind.COPY, Kind.COPY]


def test_a_copy_goes_while_the_others_have_no_credit() -> None:
    outbox = _outbox()
    _put(outbox, Kind.ACT, 6)
    _put(outbox, Kind.COPY, 2)
    assert _drain(outbox) == [Kind.ACT] * 4 + [Kind.COPY] * 2
    _put(outbox, Kind.COPY, 1)
    assert outbox.on_report("b", _report(outbox, Kind.ACT, 1), 1.0)
    assert _drain(outbox) == [Kind.ACT, Kind.COPY]


def test_what_was_lost_is_repeated_before_a_copy_goes() -> None:
    outbox = _outbox()
    _put(outbox, Kind.ACT, 3)
    assert _drain(outbox) == [Kind.ACT] * 3
    _put(outbox, Kind.COPY, 1)
    assert outbox.on_report("b", _report(outbox, Kind.ACT, 2, again=1), 1.0)
    assert _drain(outbox) == [Kind.ACT, Kind.COPY]
    assert outbox.chunks_again == 1


def test_a_lost_chunk_of_a_copy_is_patient_too() -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 2)
    assert _drain(outbox) == [Kind.COPY] * 2
    assert outbox.on_report("b", _report(outbox, Kind.COPY, 1, again=0), 1.0)
    _put(outbox, Kind.VOTE, 1)
    assert _drain(outbox) == [Kind.VOTE, Kind.COPY]


def test_copies_for_two_backups_take_turns() -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 2, dst="b")
    _put(outbox, Kind.COPY, 2, dst="c")
    went = [outbox.next() for _ in range(4)]
    assert [chunk.route.members for chunk in went if chunk is not None] == [("b",), ("c",), ("b",), ("c",)]


def test_a_copy_out_of_credit_waits_for_it() -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 6)
    assert _drain(outbox) == [Kind.COPY] * 4
    assert outbox.on_report("b", _report(outbox, Kind.COPY, 2), 1.0)
    assert _drain(outbox) == [Kind.COPY] * 2
    assert outbox.on_report("b", _report(outbox, Kind.COPY, 6, base=1), 1.0)
    assert outbox.backlog() == 0
    assert outbox.acknowledged() == [("b", Kind.COPY, 6 * CHUNK)]


def test_a_new_generation_forgets_copies() -> None:
    outbox = _outbox()
    _put(outbox, Kind.COPY, 2)
    assert outbox.backlog(kind=Kind.COPY) == 2 * CHUNK
    assert outbox.reset(2) == 1
    assert outbox.next() is None
    assert outbox.backlog() == 0


def _same(one: Outgoing | None, other: Outgoing | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.route, one.kind, one.head, bytes(one.body)) == (other.route, other.kind, other.head, bytes(other.body))


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from([Kind.COPY, Kind.ACT, Kind.GRAD]), st.integers(0, 6)),
    st.tuples(st.just("land"), st.sampled_from([Kind.COPY, Kind.ACT, Kind.GRAD]), st.integers(1, 8)),
    st.tuples(st.just("next"), st.just(Kind.COPY), st.integers(1, 6)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40))
def test_all_else_goes_as_if_there_were_no_copies(steps: list[tuple[str, Kind, int]]) -> None:
    """A second outbox is never given a copy: it sends the same, and has nothing to send when a copy goes."""
    both, plain = _outbox(), _outbox()
    sent: Counter[Kind] = Counter()
    landed: Counter[Kind] = Counter()
    for what, kind, number in [*steps, ("next", Kind.COPY, 1000)]:
        boxes = (both,) if kind is Kind.COPY else (both, plain)
        if what == "put":
            for box in boxes:
                _put(box, kind, number)
        elif what == "land":
            landed[kind] = min(sent[kind], landed[kind] + number)
            for box in boxes:
                box.on_report("b", _report(box, kind, landed[kind]), 1.0)
        else:
            for _ in range(number):
                chunk = both.next()
                if chunk is None or chunk.kind not in GAPS:
                    assert _same(chunk, plain.next())
                else:
                    assert plain.next() is None
                if chunk is None:
                    break
                sent[chunk.kind] += 1


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from([Kind.COPY, Kind.ACT, Kind.STATE]), st.integers(0, 20_000)), max_size=10),
    loss=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_copies_arrive_once_and_intact_on_a_bad_network_too(
    sizes: list[tuple[Kind, int]], loss: float, seed: int
) -> None:
    world = World(["a", "b"], FLOW, CHUNK, Weather(loss=loss, double=0.2, jitter=0.1), seed)
    world.enter(1)
    sent: Counter[tuple[Tag, bytes]] = Counter()
    for number, (kind, size) in enumerate(sizes):
        data = np.random.default_rng(number).bytes(size)
        sent[Tag(kind, 1, 0, number), data] += 1
        world.nodes["a"].outbox.put(Route(("b",)), Tag(kind, 1, 0, number), Tensor.of_bytes(data), 0.0)
    world.run()
    assert world.nodes["a"].outbox.transfers() == 0
    assert Counter((r.tag, bytes(r.tensor.data)) for r in world.nodes["b"].got) == sent
