"""No false alarm whatever is slow, silent or suspended; a verdict in time for what is broken."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from asteroid_core.detector import (
    BEAT_S,
    CEILING_S,
    HEARTBEAT_WORST_S,
    MEASURED,
    QUIET_S,
    REJOIN_S,
    STALL_S,
    TICK_S,
    Beat,
    Detector,
    Verdict,
    stall_worst_s,
)

NAMES = ("a", "b", "c", "d")
HORIZON = 150.0
GAPS = st.lists(st.floats(0.05, QUIET_S - 0.01), min_size=1, max_size=12)


@dataclass
class World:
    """Everything happens at its time; beats come with the gaps that are given, over and over.

    Attributes:
        gaps: of each device.
        paused: (begin, end) in which no beat comes, and (``suspended``) nobody calls the detector.
        moves: seconds between two steps of each device's progress; a device without never moves.
        waits: whom each device waits for, late.
        dead: when a device stops.
    """

    gaps: dict[str, list[float]]
    paused: tuple[tuple[float, float], ...] = ()
    suspended: bool = False
    moves: dict[str, float] = field(default_factory=dict)
    waits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    doubled: bool = False
    horizon: float = HORIZON
    told: list[tuple[float, Verdict]] = field(default_factory=list)

    def run(self) -> list[tuple[float, Verdict]]:
        detector = Detector()
        for name in self.gaps:
            detector.born(name, "worker", name)
        detector.start(7, list(self.gaps), 0.0)
        events: list[tuple[float, str, int]] = [(TICK_S, "", 0)]
        events += [(gaps[0], name, 1) for name, gaps in self.gaps.items()]
        heapq.heapify(events)
        while events[0][0] < self.horizon:
            now, name, count = heapq.heappop(events)
            end = next((end for begin, end in self.paused if begin <= now < end), None)
            if not name:
                if end is None or not self.suspended:
                    self.told += [(now, verdict) for verdict in detector.verdicts(now)]
                heapq.heappush(events, (now + TICK_S if end is None or not self.suspended else end, "", 0))
                continue
            if now >= self.dead.get(name, self.horizon):
                continue
            if end is None:
                self._beat(detector, name, count, now)
            gaps = self.gaps[name]
            heapq.heappush(events, (now + gaps[count % len(gaps)], name, count + 1))
        return self.told

    def _beat(self, detector: Detector, name: str, count: int, now: float) -> None:
        progress = int(now / self.moves[name]) if name in self.moves else 0
        waits = self.waits.get(name, ())
        detector.beat(name, Beat(7, name, count, progress, waits, bool(waits)), now)
        if self.doubled:
            for wrong in (
                Beat(7, name, count, progress + 1),
                Beat(7, name, count - 1, progress + 2),
                Beat(6, name, count + 9, progress + 3),
                Beat(7, "old", count + 9, progress + 4),
            ):
                detector.beat(name, wrong, now)


def several(least: int, most: int = len(NAMES)) -> st.SearchStrategy[dict[str, list[float]]]:
    return st.integers(least, most).flatmap(lambda n: st.fixed_dictionaries(dict.fromkeys(NAMES[:n], GAPS)))


OUTAGES = st.lists(st.tuples(st.floats(0, HORIZON), st.floats(0.1, 60)), max_size=4).map(
    lambda all_: tuple((begin, begin + length) for begin, length in all_)
)


@settings(max_examples=150, deadline=None)
@given(
    gaps=several(2),
    outages=OUTAGES,
    suspended=st.booleans(),
    moves=st.floats(0.1, STALL_S - 2 * QUIET_S),
    doubled=st.booleans(),
)
def test_slow_rounds_outages_and_a_suspended_coordinator_raise_no_alarm(
    gaps: dict[str, list[float]],
    outages: tuple[tuple[float, float], ...],
    suspended: bool,
    moves: float,
    doubled: bool,
) -> None:
    names = list(gaps)
    waits = {name: (after,) for name, after in pairwise(names)}
    # Only the last of the chain moves, now and then; the others wait for it all the time.
    world = World(gaps, outages, suspended, {names[-1]: moves}, waits, doubled=doubled)
    assert world.run() == []


@settings(max_examples=60, deadline=None)
@given(gaps=several(1, 1), suspensions=OUTAGES)
def test_a_lone_device_of_a_suspended_coordinator_raises_no_alarm(
    gaps: dict[str, list[float]], suspensions: tuple[tuple[float, float], ...]
) -> None:
    assert World(gaps, suspensions, suspended=True).run() == []


@settings(max_examples=100, deadline=None)
@given(
    early=st.lists(st.floats(0.05, CEILING_S - 0.01), min_size=MEASURED, max_size=MEASURED),
    picks=st.lists(st.floats(0, 1), min_size=1, max_size=40),
    moves=st.floats(0.1, STALL_S / 2),
)
def test_a_gap_like_one_seen_before_raises_no_alarm(early: list[float], picks: list[float], moves: float) -> None:
    gaps = [BEAT_S, *early, *(max(0.05, pick * max(early)) for pick in picks), max(early)]
    assert World({"a": gaps, "b": [BEAT_S]}, moves={"a": moves, "b": moves}).run() == []


@settings(max_examples=150, deadline=None)
@given(gaps=several(2), at=st.floats(0, 60), victim=st.integers(0, len(NAMES) - 1), doubled=st.booleans())
def test_a_device_that_stops_is_found_by_the_stated_time_and_nobody_else(
    gaps: dict[str, list[float]], at: float, victim: int, doubled: bool
) -> None:
    name = sorted(gaps)[victim % len(gaps)]
    told = World(gaps, dead={name: at}, doubled=doubled).run()
    assert [(verdict.device, verdict.source) for _, verdict in told] == [(name, "heartbeat")]
    found, verdict = told[0]
    assert found - at <= verdict.worst_s <= HEARTBEAT_WORST_S


@settings(max_examples=60, deadline=None)
@given(gaps=several(2), begin=st.floats(20, 40), length=st.floats(QUIET_S + 0.1, REJOIN_S), suspended=st.booleans())
def test_a_device_that_does_not_come_back_from_an_outage_is_found(
    gaps: dict[str, list[float]], begin: float, length: float, suspended: bool
) -> None:
    told = World(gaps, ((begin, begin + length),), suspended, dead={"a": begin}).run()
    assert [verdict.device for _, verdict in told] == ["a"]
    assert told[0][0] <= begin + length + QUIET_S + (REJOIN_S + 2 * QUIET_S) + TICK_S


@settings(max_examples=80, deadline=None)
@given(gaps=several(2))
def test_a_stuck_root_and_only_it_is_found_by_the_stated_time(gaps: dict[str, list[float]]) -> None:
    names = list(gaps)
    waits = {name: (after,) for name, after in pairwise(names)}
    told = World(gaps, waits=waits).run()
    assert [(verdict.device, verdict.source) for _, verdict in told] == [(names[-1], "late")]
    assert told[0][0] <= stall_worst_s(STALL_S) == told[0][1].worst_s


@settings(max_examples=80, deadline=None)
@given(gaps=several(2))
def test_a_circle_of_waits_is_found_by_the_stated_time_and_blames_nobody(gaps: dict[str, list[float]]) -> None:
    names = list(gaps)
    told = World(gaps, waits={name: (after,) for name, after in zip(names, names[1:] + names[:1], strict=True)}).run()
    assert [(verdict.device, verdict.source) for _, verdict in told] == [(None, "stuck")]
    assert told[0][0] <= stall_worst_s(STALL_S)
