"""When a device takes snapshots, whom it sends copies, and what it gives to those who ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import replicas
from tests.support.replicas import Network, Port, Trained

from asteroid_agent.worker.keeper import Keeper, Snapshot
from asteroid_agent.worker.snapshots import Snapshots
from asteroid_core.errors import WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.plan import Plan
from asteroid_core.wire.messages import Report
from asteroid_core.wire.safe import pack, pack_names, unpack
from asteroid_core.wire.tensor import ANSWER, ASK_STATE, CHECKPOINT, Kind, Tag

PLAN = replicas.plan("a | b c", {"a": ("b",)})
"""a is alone and sends its copies to b."""


@dataclass
class Device:
    """One device of the plan with what it keeps."""

    name: str
    network: Network = field(default_factory=Network)
    given: Plan = PLAN
    keeper: Keeper = field(default_factory=Keeper)
    told: list[Report] = field(default_factory=list)

    def begin(self, **changes: Any) -> Snapshots:
        """Start its stage, at the start round."""
        told = replicas.assignment(self.given, self.name, **({"snapshot_every": 3, "start_saved": True} | changes))
        stage = self.given.stages[told.stage]
        self.trained = Trained(stage.lo, stage.hi)
        self.trained.after(told.start_round)
        self.snapshots = Snapshots(told, self.keeper, self.port, self.told.append)
        self.snapshots.begin(self.trained.backend)
        return self.snapshots

    def take(self, rounds: int) -> None:
        """Train, and take a snapshot."""
        self.trained.after(rounds)
        self.snapshots.take(rounds)

    def serve(self) -> bool:
        """Take the next tensor that came."""
        return self.snapshots.serve(self.port.incoming.popleft())

    @property
    def port(self) -> Port:
        """Its end of the network."""
        return self.network.port(self.name)

    def kept(self) -> list[tuple[str, int, int]]:
        """Source, generation and rounds of what it keeps."""
        return [(s.source, s.generation, s.rounds) for s in self.keeper.snapshots()]

    def reports(self) -> list[tuple[int, int, int]]:
        """Rounds and layers of what it has told to keep."""
        assert all((r.agent, r.kind, r.generation) == (self.name, "kept", 1) for r in self.told)
        return [(r.round, r.lo, r.hi) for r in self.told]


def _device(name: str, **changes: Any) -> Device:
    device = Device(name)
    device.begin(**changes)
    return device


# When


def test_with_replication_everybody_takes_snapshots_at_the_interval_and_at_checkpoints() -> None:
    for name in ("a", "b", "c"):
        snapshots = _device(name, checkpoint_every=5, rounds=16).snapshots
        assert [r for r in range(1, 17) if snapshots.due(r)] == [3, 5, 6, 9, 10, 12, 15, 16]


@pytest.mark.parametrize(("name", "due"), [("a", [5, 10, 15, 16]), ("b", [5, 10, 15, 16]), ("c", [])])
def test_without_replication_only_leaders_do_and_only_at_checkpoints(name: str, due: list[int]) -> None:
    snapshots = _device(name, snapshot_every=0, checkpoint_every=5, rounds=16).snapshots
    assert [r for r in range(1, 17) if snapshots.due(r)] == due


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"start_saved": False}, [("a", 1, 20)]),
        ({"start_saved": True}, []),
        ({"start_saved": False, "snapshot_every": 0}, []),
    ],
)
def test_the_start_round_is_kept_if_nobody_else_keeps_it(
    changes: dict[str, Any], kept: list[tuple[str, int, int]]
) -> None:
    device = _device("a", start_round=20, **changes)
    assert device.kept() == kept
    assert device.port.of_kind(Kind.COPY) == ([("b", Tag(Kind.COPY, 1, 20, 0, 2))] if kept else [])
    assert device.snapshots.room() == (not kept)


@pytest.mark.parametrize("every", [0, 3])
def test_if_no_round_is_left_the_leader_sends_the_checkpoint_that_the_coordinator_lacks(every: int) -> None:
    device = _device("a", start_round=16, rounds=16, start_saved=False, snapshot_every=every)
    assert device.port.of_kind(Kind.STATE) == [(COORDINATOR, Tag(Kind.STATE, 1, 16, index=CHECKPOINT))]
    assert device.kept() == [("a", 1, 16)]
    other = _device("c", start_round=16, rounds=16, start_saved=False, snapshot_every=every)
    assert other.port.of_kind(Kind.STATE) == []
    saved = _device("a", start_round=16, rounds=16, start_saved=True, snapshot_every=every)
    assert saved.port.of_kind(Kind.STATE) == []


def test_the_next_snapshot_waits_until_the_last_is_durable() -> None:
    device = _device("a")
    assert device.snapshots.room()
    device.take(3)
    assert not device.snapshots.room()
    device.snapshots.settle(0, 3, 0)
    assert not device.snapshots.room(), "an older generation's round was made durable"
    device.snapshots.settle(1, 2, 0)
    assert not device.snapshots.room()
    device.snapshots.settle(1, 3, 0)
    assert device.snapshots.room()
    device.take(6)
    assert not device.snapshots.room()
    assert device.kept() == [("a", 1, 3), ("a", 1, 6)]
    device.snapshots.settle(1, 6, 0)
    assert device.snapshots.room()
    assert device.kept() == [("a", 1, 6)]


def test_a_snapshot_that_was_given_up_is_forgotten_and_nobody_waits_for_it() -> None:
    device = _device("a")
    device.take(3)
    device.snapshots.settle(1, 3, 0)
    device.take(6)
    device.snapshots.settle(1, 3, 5)
    assert not device.snapshots.room()
    device.snapshots.settle(1, 3, 6)
    assert device.snapshots.room()
    assert device.kept() == [("a", 1, 3)]
    device.take(9)
    device.snapshots.settle(1, 3, 6)
    assert not device.snapshots.room(), "the round that was given up is an older one"
    assert device.kept() == [("a", 1, 3), ("a", 1, 9)]


def test_a_durable_round_is_not_given_up() -> None:
    device = _device("a")
    device.take(3)
    device.snapshots.settle(1, 3, 3)
    assert device.kept() == [("a", 1, 3)]
    assert device.snapshots.room()


def test_what_is_said_of_a_newer_generation_is_not_meant_for_this_one() -> None:
    device = _device("a")
    device.take(3)
    device.snapshots.settle(2, 6, 6)
    assert device.kept() == [("a", 1, 3)]
    assert not device.snapshots.room()


def test_snapshots_of_an_older_generation_stay_until_this_one_has_a_durable_round() -> None:
    device = Device("a")
    device.keeper.keep(Snapshot("b", 0, 20, 2, 4, pack(replicas.state(2, 4, 20))))
    device.begin(start_round=20, start_saved=False)
    device.snapshots.settle(0, 20, 0)
    assert device.kept() == [("b", 0, 20), ("a", 1, 20)]
    device.snapshots.settle(1, 20, 0)
    assert device.kept() == [("a", 1, 20)]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["round", "durable", "given up", "copy", "stale"]), max_size=40))
def test_a_device_never_keeps_more_than_two_snapshots_of_a_stage(happens: list[str]) -> None:
    """Its own, and those of the device that it backs, which waits as it does."""
    network = Network()
    a, b = Device("a", network), Device("b", network)
    for device in (a, b):
        device.begin(snapshot_every=1)
    rounds = durable = given_up = 0
    for what in happens:
        if what == "round" and a.snapshots.room() and b.snapshots.room():
            rounds += 1
            a.take(rounds)
            b.take(rounds)
        elif what == "copy" and b.port.incoming:
            assert b.serve()
        elif what == "durable" and rounds > given_up:
            while b.port.incoming:  # a round is not durable before its copies are there
                b.serve()
            durable = rounds
        elif what == "given up" and rounds > durable and not b.port.incoming:
            given_up = rounds
        if what != "round":
            for device in (a, b):
                device.snapshots.settle(*((1, durable, given_up) if what != "stale" else (0, 99, given_up)))
        for device in (a, b):
            for source in ("a", "b"):
                assert sum(kept[0] == source for kept in device.kept()) <= 2
        if durable:
            assert ("a", 1, durable) in a.kept()
            assert ("a", 1, durable) in b.kept()


# What


def test_a_snapshot_is_kept_told_and_copied_to_the_backup() -> None:
    device = _device("a")
    device.take(3)
    assert device.kept() == [("a", 1, 3)]
    assert device.reports() == [(3, 0, 2)]
    [(dst, tag, tensor)] = device.port.sent
    assert (dst, tag) == ("b", Tag(Kind.COPY, 1, 3, 0, 2))
    assert replicas.same(unpack(tensor.data), replicas.state(0, 2, 3))


def test_what_is_sent_is_what_is_kept_and_training_does_not_change_it() -> None:
    device = _device("a")
    device.take(3)
    device.trained.after(4)
    [(_, _, tensor)] = device.port.sent
    [snapshot] = device.keeper.snapshots()
    assert replicas.same(unpack(snapshot.data), replicas.state(0, 2, 3))
    assert np.shares_memory(np.frombuffer(tensor.data, np.uint8), np.frombuffer(snapshot.data, np.uint8))


def test_every_backup_gets_a_copy() -> None:
    device = Device("a", given=replicas.plan("a | b c", {"a": ("c", "b")}))
    device.begin()
    device.take(3)
    assert [dst for dst, _ in device.port.of_kind(Kind.COPY)] == ["c", "b"]


@pytest.mark.parametrize("name", ["b", "c"])
def test_members_of_a_group_keep_their_own_and_send_none(name: str) -> None:
    device = _device(name)
    device.take(3)
    assert device.reports() == [(3, 2, 4)]
    assert device.port.sent == []


@pytest.mark.parametrize(
    ("name", "rounds", "goes"),
    [
        ("a", 3, {("b", Kind.COPY)}),
        ("a", 6, {("b", Kind.COPY), (COORDINATOR, Kind.STATE)}),
        ("a", 10, {(COORDINATOR, Kind.STATE)}),
        ("b", 3, set()),
        ("b", 6, {(COORDINATOR, Kind.STATE)}),
        ("c", 6, set()),
        ("c", 10, set()),
    ],
)
def test_leaders_send_checkpoints_and_nobody_copies_the_last_round(
    name: str, rounds: int, goes: set[tuple[str, Kind]]
) -> None:
    device = _device(name, checkpoint_every=6, rounds=10)
    device.take(rounds)
    assert {(dst, tag.kind) for dst, tag, _ in device.port.sent} == goes
    for _, tag in device.port.of_kind(Kind.STATE):
        assert tag == Tag(Kind.STATE, 1, rounds, index=CHECKPOINT)


def test_without_replication_a_checkpoint_goes_to_the_coordinator_only() -> None:
    device = _device("a", snapshot_every=0, checkpoint_every=5)
    device.take(5)
    assert [(dst, tag.kind) for dst, tag, _ in device.port.sent] == [(COORDINATOR, Kind.STATE)]
    assert replicas.same(unpack(device.port.sent[0][2].data), replicas.state(0, 2, 5))
    assert not device.snapshots.room()


# For others


def test_a_copy_is_kept_and_told_beside_the_devices_own() -> None:
    network = Network()
    a, b = Device("a", network), Device("b", network)
    a.begin()
    b.begin()
    a.take(3)
    b.take(3)
    [received] = b.port.incoming
    assert b.serve()
    assert b.kept() == [("a", 1, 3), ("b", 1, 3)]
    assert b.reports() == [(3, 2, 4), (3, 0, 2)]
    assert b.port.released == [received.token]
    assert replicas.same(b.keeper.find(3, replicas.program(0, 4).names(0, 4)), replicas.state(0, 4, 3))


GOOD = pack(replicas.state(0, 2, 3))


@pytest.mark.parametrize(
    ("me", "src", "tag", "data"),
    [
        ("c", "a", Tag(Kind.COPY, 1, 3, 0, 2), GOOD),
        ("b", "c", Tag(Kind.COPY, 1, 3, 0, 2), GOOD),
        ("b", "c", Tag(Kind.COPY, 1, 3, 2, 4), GOOD),
        ("b", "stranger", Tag(Kind.COPY, 1, 3, 0, 2), GOOD),
        ("b", COORDINATOR, Tag(Kind.COPY, 1, 3, 0, 2), GOOD),
        ("b", "a", Tag(Kind.COPY, 1, 3, 0, 3), GOOD),
        ("b", "a", Tag(Kind.COPY, 1, 3, 1, 2), GOOD),
        ("b", "a", Tag(Kind.COPY, 1, 3, 0, 2), GOOD[:-1]),
        ("b", "a", Tag(Kind.COPY, 1, 3, 0, 2), memoryview(b"no state")),
    ],
)
def test_a_copy_that_may_not_be_sent_or_is_damaged_is_refused(me: str, src: str, tag: Tag, data: memoryview) -> None:
    device = _device(me)
    device.port.put(src, tag, data)
    with pytest.raises(WireError):
        device.serve()
    assert device.kept() == []
    assert device.told == []


def _ask(device: Device, src: str, rounds: int, names: set[str]) -> Port:
    device.port.put(src, Tag(Kind.ASK, 1, rounds, index=ASK_STATE), pack_names(sorted(names)))
    assert device.serve()
    assert len(device.port.released) == 1
    return device.network.port(src)


def test_who_asks_gets_the_layers_of_that_round_from_all_snapshots() -> None:
    device = _device("b")
    for rounds in (3, 6):
        device.take(rounds)
        device.port.put("a", Tag(Kind.COPY, 1, rounds, 0, 2), pack(replicas.state(0, 2, rounds)))
        device.serve()
    device.port.released.clear()
    answers = _ask(device, "c", 3, {"l1.w", "l1.n", "l2.w", "l2.n"})
    [received] = answers.incoming
    assert (received.src, received.tag) == ("b", Tag(Kind.STATE, 1, 3, index=ANSWER))
    assert replicas.same(unpack(received.tensor.data), replicas.state(1, 3, 3))


def test_what_is_not_kept_is_answered_with_nothing() -> None:
    device = _device("a")
    device.take(3)
    [received] = _ask(device, "c", 6, {"l0.w"}).incoming
    assert unpack(received.tensor.data) == {}


def test_a_question_before_the_stage_is_loaded_is_answered_too() -> None:
    device = Device("b")
    device.keeper.keep(Snapshot("b", 0, 3, 2, 4, pack(replicas.state(2, 4, 3))))
    told = replicas.assignment(PLAN, "b", start_round=3, snapshot_every=3)
    device.snapshots = Snapshots(told, device.keeper, device.port, device.told.append)
    [received] = _ask(device, "a", 3, {"l2.w", "l2.n"}).incoming
    assert replicas.same(unpack(received.tensor.data), replicas.state(2, 3, 3))


def test_a_question_that_is_none_is_refused() -> None:
    device = _device("a")
    device.port.put("c", Tag(Kind.ASK, 1, 3), b"{}")
    with pytest.raises(WireError):
        device.serve()
    assert device.network.port("c").incoming == type(device.port.incoming)()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.ASK, Kind.COPY)])
def test_everything_else_is_left_to_the_stage(kind: Kind) -> None:
    device = _device("b")
    device.port.put("a", Tag(kind, 1, 3), b"")
    assert not device.serve()
    assert device.port.released == []
    assert device.port.sent == []
