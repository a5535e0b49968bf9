"""A device gets its program from the coordinator, and its state from whoever holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from tests.support import replicas
from tests.support.replicas import Network, Port
from tests.support.worker import Waiting

from asteroid_agent.worker.fetching import Fetcher
from asteroid_agent.worker.keeper import Keeper, Snapshot
from asteroid_agent.worker.snapshots import Snapshots
from asteroid_coordinator.stock import Question, Stock
from asteroid_core.errors import AsteroidError, ProgramError, WireError
from asteroid_core.held import Source
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Plan
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.messages import Assignment, Report
from asteroid_core.wire.safe import pack, pack_names, read_names, unpack
from asteroid_core.wire.tensor import ASK_PROGRAM, ASK_STATE, Kind, Tag, Tensor

PLAN = replicas.plan("a | b", generation=2)
PROGRAM = replicas.program(0, 2)
NAMES = PROGRAM.names(0, 2)
ROUNDS = 20


def _from(*places: tuple[str, int, int]) -> tuple[Source, ...]:
    return tuple(Source(device=device, lo=lo, hi=hi) for device, lo, hi in places)


class Interrupted(Exception):
    """A newer assignment has come."""


@dataclass
class Device:
    """One device that has got an assignment."""

    name: str
    network: Network
    told: Assignment
    keeper: Keeper = field(default_factory=Keeper)
    reports: list[Report] = field(default_factory=list)
    control: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.told, self.keeper, self.port, self.reports.append)
        self.network.serving[self.name] = self.snapshots.serve
        self.fetcher = Fetcher(self.told, self.port, self.keeper, self.snapshots, self.control)

    @property
    def port(self) -> Port:
        """Its end of the network."""
        return self.network.port(self.name)

    def keeps(self, lo: int, hi: int, rounds: int = ROUNDS) -> Device:
        """Let it keep some layers."""
        self.keeper.keep(Snapshot(self.name, 1, rounds, lo, hi, pack(replicas.state(lo, hi, rounds))))
        return self


def _device(name: str, network: Network | None = None, given: Plan = PLAN, **changes: Any) -> Device:
    told = replicas.assignment(given, name, **({"start_round": ROUNDS} | changes))
    return Device(name, network or Network(), told)


def _coordinator(network: Network, lo: int = 0, hi: int = 4, rounds: int = ROUNDS) -> None:
    """Programs and state of these layers are given out."""
    programs = {d: replicas.program(s.lo, s.hi).to_bytes() for s in PLAN.stages for d in s.devices}
    stock = Stock(PLAN.generation, ROUNDS, programs, lambda: replicas.state(lo, hi, rounds))
    link = cast("TensorLink", network.port(COORDINATOR))

    def serve(received: Received) -> None:
        if received.tag.kind is Kind.ASK:
            stock.answer(link, Question(received.src, received.tag, received.tensor.data))

    network.serving[COORDINATOR] = serve


def _fails(do: Callable[[], object], kind: type[AsteroidError]) -> AsteroidError:
    with pytest.raises(kind) as caught:
        do()
    return caught.value


# Program


def test_the_program_comes_from_the_coordinator_by_its_hash() -> None:
    device = _device("a")
    _coordinator(device.network)
    assert device.fetcher.program({}) == PROGRAM
    assert device.port.of_kind(Kind.ASK) == [(COORDINATOR, Tag(Kind.ASK, 2, ROUNDS, index=ASK_PROGRAM))]
    assert len(device.port.released) == 1


def test_a_program_that_is_here_already_is_not_asked_for() -> None:
    device = _device("a")
    assert device.fetcher.program({"0" * 64: replicas.program(2, 4), device.told.program_sha256: PROGRAM}) is PROGRAM
    assert device.port.sent == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"program_sha256": "0" * 64}, "SHA-256"),
        ({"program_bytes": 7}, "not the one that the assignment names"),
    ],
)
def test_another_program_is_refused(change: dict[str, Any], says: str) -> None:
    device = _device("a", **change)
    _coordinator(device.network)
    error = _fails(lambda: device.fetcher.program({}), ProgramError)
    assert says in error.what
    assert error.remedy


@pytest.mark.parametrize("src", ["b", "stranger"])
def test_a_program_from_another_sender_is_refused(src: str) -> None:
    device = _device("a")
    device.port.put(src, Tag(Kind.PROGRAM, 2), PROGRAM.to_bytes())
    error = _fails(lambda: device.fetcher.program({}), WireError)
    assert error.what.startswith(f"{src} sent a program")


def test_state_that_nobody_has_asked_for_is_refused() -> None:
    device = _device("a")
    device.port.put(COORDINATOR, Tag(Kind.STATE, 2, ROUNDS), pack(replicas.state(0, 2, ROUNDS)))
    assert "coordinator sent a state" in _fails(lambda: device.fetcher.program({}), WireError).what


# State


def test_layers_come_from_here_from_a_device_and_from_the_coordinator() -> None:
    network = Network()
    plan = replicas.plan("b | a", generation=2)
    device = _device("a", network, plan, sources=_from(("a", 2, 3), ("b", 3, 4))).keeps(2, 3)
    _device("b", network, plan).keeps(0, 4)
    assert replicas.same(device.fetcher.state(replicas.program(2, 4)), replicas.state(2, 4, ROUNDS))
    [(dst, tag, tensor)] = device.port.sent
    assert (dst, tag) == ("b", Tag(Kind.ASK, 2, ROUNDS, index=ASK_STATE))
    assert set(read_names(tensor.data)) == {"l3.w", "l3.n"}, "what is here is not asked for"


def test_all_sources_are_asked_before_any_answers() -> None:
    network = Network()
    device = _device("a", network, sources=_from((COORDINATOR, 0, 1), ("b", 1, 2)))
    _device("b", network).keeps(1, 4)
    _coordinator(network, 0, 1)
    went: list[int] = []
    device.fetcher = Fetcher(
        device.told, device.port, device.keeper, device.snapshots, lambda: went.append(len(device.port.sent))
    )
    assert replicas.same(device.fetcher.state(PROGRAM), replicas.state(0, 2, ROUNDS))
    assert went[0] == 2
    assert {dst for dst, _, _ in device.port.sent} == {"b", COORDINATOR}
    assert len(device.port.released) == 2


def test_one_source_of_several_runs_is_asked_once() -> None:
    network = Network()
    plan = replicas.plan("a", generation=2)
    plan = plan.model_copy(update={"stages": (plan.stages[0].model_copy(update={"hi": 3}),)})
    device = _device("a", network, plan, sources=_from(("b", 0, 1), ("a", 1, 2), ("b", 2, 3))).keeps(1, 2)
    helper = Device("b", network, replicas.assignment(PLAN, "b", start_round=ROUNDS)).keeps(0, 4)
    assert replicas.same(device.fetcher.state(replicas.program(0, 3)), replicas.state(0, 3, ROUNDS))
    assert len(device.port.sent) == len(helper.port.sent) == 1


def test_all_from_here_asks_nobody() -> None:
    device = _device("a", sources=_from(("a", 0, 2))).keeps(0, 2)
    assert replicas.same(device.fetcher.state(PROGRAM), replicas.state(0, 2, ROUNDS))
    assert device.port.sent == []


def test_two_devices_that_ask_each_other_both_get_their_layers() -> None:
    network = Network()
    a = _device("a", network, sources=_from(("b", 0, 2))).keeps(2, 4)
    b = _device("b", network, sources=_from(("a", 2, 4))).keeps(0, 2)
    # b has asked and waits, and a asks: a's question is b's next tensor.
    b.port.send("a", Tag(Kind.ASK, 2, ROUNDS, index=ASK_STATE), _names(2, 4))
    assert replicas.same(a.fetcher.state(PROGRAM), replicas.state(0, 2, ROUNDS))
    assert [dst for dst, _ in a.port.of_kind(Kind.STATE)] == ["b"], "a served b while it waited"
    assert replicas.same(unpack(b.port.incoming[0].tensor.data), replicas.state(2, 4, ROUNDS))


def _names(lo: int, hi: int) -> Tensor:
    return Tensor.of_bytes(pack_names(sorted(replicas.program(lo, hi).names(lo, hi))))


def test_what_came_is_not_copied() -> None:
    device = _device("a", sources=_from((COORDINATOR, 0, 2)))
    received = device.port.put(COORDINATOR, Tag(Kind.STATE, 2, ROUNDS), pack(replicas.state(0, 2, ROUNDS)))
    found = device.fetcher.state(PROGRAM)
    assert np.shares_memory(found["l0.w"], np.frombuffer(received.tensor.data, np.uint8))


def test_more_than_was_asked_for_is_not_taken() -> None:
    device = _device("a", sources=_from(("a", 0, 1), (COORDINATOR, 1, 2))).keeps(0, 1)
    too_much = replicas.state(0, 4, ROUNDS) | {"l0.w": np.full(3, 99.0)}
    device.port.put(COORDINATOR, Tag(Kind.STATE, 2, ROUNDS), pack(too_much))
    assert replicas.same(device.fetcher.state(PROGRAM), replicas.state(0, 2, ROUNDS))


# Early, missing, wrong


def test_tensors_of_the_first_rounds_that_come_early_are_put_aside_in_their_order() -> None:
    device = _device("a", sources=_from((COORDINATOR, 0, 2)))
    early = [device.port.put(COORDINATOR, Tag(Kind.FEED, 2, ROUNDS, micro), b"x") for micro in (1, 0)]
    early.append(device.port.put("b", Tag(Kind.GRAD, 2, ROUNDS, 1), b"y"))
    _coordinator(device.network)
    assert device.fetcher.program({}) == PROGRAM
    early.append(device.port.put("b", Tag(Kind.VOTE, 2, ROUNDS), b"z"))
    device.fetcher.state(PROGRAM)
    assert device.fetcher.early == early
    assert not set(device.port.released) & {received.token for received in early}, "their senders get no credit yet"


@pytest.mark.parametrize("kept", [None, (1, 2, ROUNDS), (0, 2, ROUNDS - 1)])
def test_a_source_that_does_not_have_it_ends_the_attempt_and_is_named(kept: tuple[int, int, int] | None) -> None:
    network = Network()
    device = _device("a", network, sources=_from(("b", 0, 2)))
    helper = _device("b", network)
    if kept:
        helper.keeps(*kept)
    error = _fails(lambda: device.fetcher.state(PROGRAM), ProgramError)
    assert error.what == f"b does not have the state of l0.n after {ROUNDS} rounds."
    assert "last checkpoint" in error.remedy


def test_what_should_be_here_and_is_not_ends_the_attempt_too() -> None:
    device = _device("a", sources=_from(("a", 0, 2))).keeps(0, 2, ROUNDS + 1)
    assert _fails(lambda: device.fetcher.state(PROGRAM), ProgramError).what.startswith("a does not have")


@pytest.mark.parametrize("data", [b"", b"no state at all", bytes(pack(replicas.state(0, 2, ROUNDS)))[:-1]])
def test_an_answer_that_is_no_state_is_refused(data: bytes) -> None:
    device = _device("a", sources=_from(("b", 0, 2)))
    device.port.put("b", Tag(Kind.STATE, 2, ROUNDS), data)
    _fails(lambda: device.fetcher.state(PROGRAM), WireError)


@pytest.mark.parametrize("src", ["stranger", COORDINATOR])
def test_state_from_somebody_who_was_not_asked_is_refused(src: str) -> None:
    device = _device("a", sources=_from(("b", 0, 2)))
    device.port.put(src, Tag(Kind.STATE, 2, ROUNDS), pack(replicas.state(0, 2, ROUNDS)))
    error = _fails(lambda: device.fetcher.state(PROGRAM), WireError)
    assert error.what.startswith(f"{src} sent a state")
    assert error.remedy


def test_a_second_answer_is_refused() -> None:
    device = _device("a", sources=_from(("b", 0, 1), (COORDINATOR, 1, 2)))
    for _ in range(2):
        device.port.put("b", Tag(Kind.STATE, 2, ROUNDS), pack(replicas.state(0, 1, ROUNDS)))
    assert _fails(lambda: device.fetcher.state(PROGRAM), WireError).what.startswith("b sent a state")


def test_copies_that_come_meanwhile_are_kept() -> None:
    plan = replicas.plan("a | b", {"b": ("a",)}, generation=2)
    device = _device("a", given=plan, sources=_from((COORDINATOR, 0, 2)))
    device.port.put("b", Tag(Kind.COPY, 2, ROUNDS, 2, 4), pack(replicas.state(2, 4, ROUNDS)))
    _coordinator(device.network)
    device.fetcher.state(PROGRAM)
    assert [(s.source, s.rounds) for s in device.keeper.snapshots()] == [("b", ROUNDS)]
    assert [(r.kind, r.round, r.lo, r.hi) for r in device.reports] == [("kept", ROUNDS, 2, 4)]


def test_a_newer_assignment_interrupts_the_wait() -> None:
    def control() -> None:
        if device.port.incoming or device.network.patience < 3:
            raise Interrupted

    network = Network()
    told = replicas.assignment(PLAN, "a", start_round=ROUNDS, sources=_from(("b", 0, 2)))
    device = Device("a", network, told, control=control)
    with pytest.raises(Interrupted):
        device.fetcher.state(PROGRAM)
    with pytest.raises(Interrupted):
        device.fetcher.program({})


def test_without_an_answer_it_waits() -> None:
    device = _device("a", sources=_from(("b", 0, 2)))
    with pytest.raises(Waiting):
        device.fetcher.state(PROGRAM)
