"""What workers are given by the coordinator: programs, and the state of the start round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.support import replicas
from tests.support.replicas import Network, Port

from asteroid_coordinator.stock import Question, Stock
from asteroid_core.errors import AsteroidError, WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.tensors import TensorLink
from asteroid_core.wire.safe import Array, pack, pack_names, read_names, unpack
from asteroid_core.wire.tensor import ASK_PROGRAM, ASK_STATE, Kind, Tag

ROUNDS = 20
PROGRAMS = {"a": b"the program of a", "b": b"the program of b", "c": b"the program of b"}
ALL = replicas.program(0, 4)


@dataclass
class Coordinator:
    """A stock and the coordinator's end of the network."""

    state: Mapping[str, Array] = field(default_factory=lambda: replicas.state(0, 4, ROUNDS))
    loads: int = 0

    def __post_init__(self) -> None:
        self.port: Port = Network().port(COORDINATOR)
        self.link = cast("TensorLink", self.port)
        self.stock = Stock(2, ROUNDS, PROGRAMS, self.load)

    def load(self) -> Mapping[str, Array]:
        """Read the state, and count how often."""
        self.loads += 1
        return self.state

    def ask(self, source: str, lo: int, hi: int, generation: int = 2, what: int = ASK_STATE) -> None:
        """A worker asks for layers (or for its program)."""
        names = pack_names(sorted(ALL.names(lo, hi)))
        tag = Tag(Kind.ASK, generation, ROUNDS, index=what)
        self.stock.answer(self.link, Question(source, tag, memoryview(names)))

    def got(self, source: str) -> list[tuple[Tag, bytes]]:
        """What a worker was sent, once."""
        port = self.port.network.port(source)
        out = [(r.tag, bytes(r.tensor.data)) for r in port.incoming]
        assert all(r.src == COORDINATOR for r in port.incoming)
        port.incoming.clear()
        return out

    def got_state(self, source: str) -> dict[str, Array]:
        """The one answer that a worker was sent."""
        [(tag, data)] = self.got(source)
        assert (tag.kind, tag.generation, tag.round) == (Kind.STATE, 2, ROUNDS)
        return unpack(memoryview(data))

    def collect(self, **wanted: tuple[int, int]) -> None:
        """Ask devices for layers, as before a baseline's rescheduling."""
        self.stock.collect(self.link, {device: ALL.names(*layers) for device, layers in wanted.items()})

    def answered(self, source: str, lo: int, hi: int) -> None:
        """A device has sent layers."""
        self.stock.collected(self.link, source, pack(replicas.state(lo, hi, ROUNDS)))


def test_programs_are_named_by_their_hash() -> None:
    stock = Coordinator().stock
    assert stock.sha256("a") == hashlib.sha256(PROGRAMS["a"]).hexdigest()
    assert stock.sha256("b") == stock.sha256("c") != stock.sha256("a")


@pytest.mark.parametrize("device", PROGRAMS)
def test_each_device_gets_its_own_program(device: str) -> None:
    coordinator = Coordinator()
    coordinator.ask(device, 0, 0, what=ASK_PROGRAM)
    assert coordinator.got(device) == [(Tag(Kind.PROGRAM, 2), PROGRAMS[device])]
    assert coordinator.loads == 0, "no state is read for a program"


def test_state_is_given_by_names_and_read_once() -> None:
    coordinator = Coordinator()
    assert coordinator.loads == 0
    coordinator.ask("a", 0, 2)
    coordinator.ask("b", 1, 4)
    assert replicas.same(coordinator.got_state("a"), replicas.state(0, 2, ROUNDS))
    assert replicas.same(coordinator.got_state("b"), replicas.state(1, 4, ROUNDS))
    assert coordinator.loads == 1


def test_names_that_are_not_in_the_state_are_left_out() -> None:
    coordinator = Coordinator(replicas.state(0, 1, ROUNDS))
    coordinator.ask("a", 0, 2)
    assert replicas.same(coordinator.got_state("a"), replicas.state(0, 1, ROUNDS))


@pytest.mark.parametrize("what", [ASK_STATE, ASK_PROGRAM])
@pytest.mark.parametrize(("source", "generation"), [("a", 1), ("a", 3), ("stranger", 2)])
def test_questions_of_other_generations_and_of_strangers_are_dropped(source: str, generation: int, what: int) -> None:
    coordinator = Coordinator()
    coordinator.ask(source, 0, 2, generation, what)
    assert coordinator.port.sent == []
    assert coordinator.loads == 0


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1]", b"\xff"])
def test_a_question_that_is_none_is_refused(raw: bytes) -> None:
    coordinator = Coordinator()
    with pytest.raises(WireError):
        coordinator.stock.answer(coordinator.link, Question("a", Tag(Kind.ASK, 2, ROUNDS), memoryview(raw)))
    assert coordinator.port.sent == []


def test_a_state_that_cannot_be_read_is_said_each_time() -> None:
    coordinator = Coordinator()

    def load() -> Mapping[str, Array]:
        raise AsteroidError("The checkpoint of round 20 is missing or damaged.")

    coordinator.stock.load = load
    for _ in range(2):
        with pytest.raises(AsteroidError, match="missing or damaged"):
            coordinator.ask("a", 0, 2)
    assert coordinator.port.sent == []


def test_an_empty_stock_drops_everything() -> None:
    coordinator = Coordinator()
    coordinator.stock = Stock()
    coordinator.ask("a", 0, 2, generation=0)
    assert coordinator.port.sent == []


# Collecting: all weights travel through the coordinator


def test_devices_are_asked_for_what_is_wanted() -> None:
    coordinator = Coordinator()
    coordinator.collect(a=(0, 2), b=(2, 4))
    asked = {dst: (tag, set(read_names(tensor.data))) for dst, tag, tensor in coordinator.port.sent}
    tag = Tag(Kind.ASK, 2, ROUNDS, index=ASK_STATE)
    assert asked == {"a": (tag, set(ALL.names(0, 2))), "b": (tag, set(ALL.names(2, 4)))}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_questions_wait_until_all_is_collected_and_then_are_answered_in_turn(order: tuple[str, str]) -> None:
    coordinator = Coordinator({})
    coordinator.collect(a=(0, 2), b=(2, 4))
    coordinator.port.sent.clear()
    places = {"a": (0, 2), "b": (2, 4)}
    coordinator.ask("c", 1, 3)
    coordinator.answered(order[0], *places[order[0]])
    coordinator.ask("a", 0, 1)
    assert coordinator.port.sent == []
    coordinator.answered(order[1], *places[order[1]])
    assert [dst for dst, _, _ in coordinator.port.sent] == ["c", "a"]
    for port in ("a", "b"):
        coordinator.port.network.port(port).incoming = type(coordinator.port.incoming)(
            r for r in coordinator.port.network.port(port).incoming if r.tag.kind is Kind.STATE
        )
    assert replicas.same(coordinator.got_state("c"), replicas.state(1, 3, ROUNDS))
    assert replicas.same(coordinator.got_state("a"), replicas.state(0, 1, ROUNDS))
    coordinator.ask("b", 3, 4)
    assert replicas.same(coordinator.got_state("b"), replicas.state(3, 4, ROUNDS))
    assert coordinator.loads == 0, "the checkpoint is an older one"


def test_programs_are_given_while_state_is_collected() -> None:
    coordinator = Coordinator()
    coordinator.collect(a=(0, 4))
    coordinator.ask("b", 0, 0, what=ASK_PROGRAM)
    assert coordinator.got("b") == [(Tag(Kind.PROGRAM, 2), PROGRAMS["b"])]


def test_only_what_was_asked_for_is_taken() -> None:
    coordinator = Coordinator()
    coordinator.collect(a=(0, 2), b=(2, 4))
    coordinator.answered("b", 0, 4)
    coordinator.stock.collected(
        coordinator.link, "a", pack({name: array * 2 for name, array in replicas.state(0, 4, ROUNDS).items()})
    )
    coordinator.ask("c", 1, 3)
    found = coordinator.got_state("c")
    assert found["l1.w"].tolist() == (2 * replicas.state(1, 2, ROUNDS)["l1.w"]).tolist(), "of a"
    assert found["l2.w"].tolist() == replicas.state(2, 3, ROUNDS)["l2.w"].tolist(), "of b"


def test_an_answer_that_was_not_asked_for_or_comes_again_is_refused() -> None:
    coordinator = Coordinator()
    with pytest.raises(WireError, match="b sent state that it was not asked for"):
        coordinator.answered("b", 2, 4)
    coordinator.collect(a=(0, 2), b=(2, 4))
    coordinator.answered("a", 0, 2)
    with pytest.raises(WireError, match="a sent state that it was not asked for"):
        coordinator.answered("a", 0, 2)


def test_an_answer_with_a_hole_is_refused_by_name() -> None:
    coordinator = Coordinator()
    coordinator.collect(a=(0, 2))
    with pytest.raises(WireError, match=rf"a does not have the state of l1\.n after {ROUNDS} rounds"):
        coordinator.answered("a", 0, 1)


def test_an_answer_that_is_no_state_is_refused() -> None:
    coordinator = Coordinator()
    coordinator.collect(a=(0, 2))
    with pytest.raises(WireError):
        coordinator.stock.collected(coordinator.link, "a", memoryview(b"no state"))
