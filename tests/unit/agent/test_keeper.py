"""Snapshots in memory: what is kept, for how long, and what of it is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import replicas

from asteroid_agent.worker.keeper import Keeper, Snapshot
from asteroid_core.errors import WireError
from asteroid_core.wire.safe import pack


def _snapshot(source: str, generation: int, rounds: int, lo: int = 0, hi: int = 2) -> Snapshot:
    return Snapshot(source, generation, rounds, lo, hi, pack(replicas.state(lo, hi, rounds)))


def _keeper(*ages: tuple[int, int]) -> Keeper:
    """Keeps snapshots of its own and of another device, of these generations and rounds."""
    keeper = Keeper()
    for generation, rounds in ages:
        keeper.keep(_snapshot("a", generation, rounds))
        keeper.keep(_snapshot("b", generation, rounds, 2, 4))
    return keeper


def _ages(keeper: Keeper) -> list[tuple[int, int]]:
    ages = [snapshot.age for snapshot in keeper.snapshots()]
    assert ages[::2] == ages[1::2], "both devices' snapshots come and go together"
    return ages[::2]


def test_an_empty_keeper_has_nothing() -> None:
    keeper = Keeper()
    assert (keeper.snapshots(), keeper.nbytes, keeper.find(0, ["l0.w"])) == ([], 0, {})


def test_snapshots_come_the_oldest_first_by_generation_then_round() -> None:
    assert _ages(_keeper((2, 4), (1, 9), (2, 3))) == [(1, 9), (2, 3), (2, 4)]


def test_the_bytes_of_all_are_counted() -> None:
    keeper = _keeper((1, 3), (1, 4))
    assert keeper.nbytes == sum(len(snapshot.data) for snapshot in keeper.snapshots()) > 0


def test_the_same_snapshot_again_replaces_the_first() -> None:
    keeper = Keeper()
    keeper.keep(_snapshot("a", 1, 3))
    again = _snapshot("a", 1, 3)
    keeper.keep(again)
    assert keeper.snapshots() == [again]
    assert keeper.snapshots()[0] is again


def test_what_is_older_than_the_durable_round_goes() -> None:
    keeper = _keeper((1, 3), (1, 6), (2, 3), (2, 6))
    keeper.settle(1, 6)
    assert _ages(keeper) == [(1, 6), (2, 3), (2, 6)]
    keeper.settle(2, 6)
    assert _ages(keeper) == [(2, 6)]
    keeper.settle(1, 9)
    assert _ages(keeper) == [(2, 6)], "a word about an older generation comes late"


def test_a_new_begin_keeps_one_round_of_all_generations() -> None:
    keeper = _keeper((1, 3), (1, 6), (2, 3), (3, 9))
    keeper.only({3})
    assert _ages(keeper) == [(1, 3), (2, 3)]


def test_a_round_that_was_given_up_goes_alone() -> None:
    keeper = _keeper((1, 3), (1, 6), (2, 6))
    keeper.forget(1, 6)
    assert _ages(keeper) == [(1, 3), (2, 6)]
    keeper.forget(9, 9)
    assert _ages(keeper) == [(1, 3), (2, 6)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 5)), max_size=12),
    st.integers(0, 3),
    st.integers(0, 5),
)
def test_each_rule_keeps_exactly_what_it_says(ages: list[tuple[str, int, int]], generation: int, rounds: int) -> None:
    def filled() -> Keeper:
        keeper = Keeper()
        for source, of_generation, of_rounds in ages:
            keeper.keep(Snapshot(source, of_generation, of_rounds, 0, 1, memoryview(b"")))
        return keeper

    def left(keeper: Keeper) -> set[tuple[str, int, int]]:
        return {(s.source, s.generation, s.rounds) for s in keeper.snapshots()}

    settled, only, forgot = filled(), filled(), filled()
    settled.settle(generation, rounds)
    only.only([rounds])
    forgot.forget(generation, rounds)
    assert left(filled()) == set(ages)
    assert left(settled) == {age for age in ages if age[1:] >= (generation, rounds)}
    assert left(only) == {age for age in ages if age[2] == rounds}
    assert left(forgot) == {age for age in ages if age[1:] != (generation, rounds)}


def test_layers_are_found_across_snapshots_with_their_optimizer_state() -> None:
    keeper = _keeper((1, 3), (1, 6))
    names = {"l1.w", "l1.n", "l2.w", "l2.n"}
    assert replicas.same(keeper.find(6, names), replicas.state(1, 3, 6))
    assert replicas.same(keeper.find(3, names), replicas.state(1, 3, 3))
    assert keeper.find(5, names) == {}


def test_names_that_are_not_here_are_not_found() -> None:
    assert _keys(_keeper((1, 3)), {"l1.w", "l9.w"}) == {"l1.w", "opt/l1.w/momentum_buffer", "opt/step"}


def _keys(keeper: Keeper, names: set[str]) -> set[str]:
    return set(keeper.find(3, names))


def test_pieces_of_one_round_are_found_whatever_their_generation() -> None:
    keeper = Keeper()
    keeper.keep(_snapshot("a", 1, 6, 0, 2))
    keeper.keep(_snapshot("b", 3, 6, 1, 4))
    assert replicas.same(
        keeper.find(6, {"l0.w", "l0.n", "l3.w", "l3.n"}), replicas.state(0, 1, 6) | replicas.state(3, 4, 6)
    )


def test_nothing_is_copied() -> None:
    keeper = _keeper((1, 3))
    found = keeper.find(3, {"l0.w"})["l0.w"]
    assert np.shares_memory(found, np.frombuffer(keeper.snapshots()[0].data, np.uint8))


def test_what_is_no_state_is_refused_when_it_is_looked_into() -> None:
    keeper = Keeper()
    keeper.keep(Snapshot("b", 1, 6, 0, 2, memoryview(b"no state")))
    assert keeper.find(3, {"l0.w"}) == {}
    with pytest.raises(WireError):
        keeper.find(6, {"l0.w"})
