"""Who is lost and who is not: each source, what silences it, and how soon it speaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asteroid_core.detector import (
    BEAT_S,
    CEILING_S,
    FLOOR_S,
    HEARTBEAT_WORST_S,
    LONE_S,
    LONE_WORST_S,
    MEASURED,
    QUIET_S,
    REJOIN_MAX_S,
    REJOIN_S,
    STALL_FACTOR,
    STALL_S,
    TICK_S,
    WORD_S,
    Beat,
    Detector,
    Verdict,
    rejoin_s,
    stall_worst_s,
    will_worst_s,
)
from asteroid_core.patience import FACTOR, FADE, Patience
from asteroid_core.patience import FLOOR_S as PATIENCE_FLOOR_S


class Site:
    """Devices that beat each second, a clock, and a detector that is called every tick."""

    def __init__(self, *devices: str, predicted_s: float = 0.0) -> None:
        self.detector, self.now, self.devices = Detector(), 100.0, devices
        self.count = dict.fromkeys(devices, 0)
        self.progress = dict.fromkeys(devices, 0)
        self.waiting: dict[str, tuple[str, ...]] = {}
        self.late: set[str] = set()
        self.frozen: set[str] = set()
        self.stuck: set[str] = set()
        self.told: list[tuple[float, Verdict]] = []
        for device in devices:
            self.detector.born(device, "worker", f"{device}-w1")
            self.detector.born(device, "supervisor", f"{device}-s1")
        self.detector.start(1, devices, self.now, predicted_s)

    def beat(self, device: str, **other: object) -> None:
        self.count[device] += 1
        if device not in self.stuck and not self.waiting.get(device):
            self.progress[device] += 1
        fields: dict[str, object] = {
            "generation": 1,
            "connection": f"{device}-w1",
            "count": self.count[device],
            "progress": self.progress[device],
            "waiting": self.waiting.get(device, ()),
            "late": device in self.late,
        }
        self.detector.beat(device, Beat(**{**fields, **other}), self.now)  # type: ignore[arg-type]

    def tick(self) -> tuple[Verdict, ...]:
        found = self.detector.verdicts(self.now)
        self.told += [(self.now, verdict) for verdict in found]
        return found

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> list[tuple[float, Verdict]]:
        """Let time pass; returns what was said in it."""
        before = len(self.told)
        for step in range(round(seconds / TICK_S)):
            if until():
                break
            self.now += TICK_S
            if step % round(BEAT_S / TICK_S) == 0:
                for device in self.devices:
                    if device not in self.frozen:
                        self.beat(device)
            self.tick()
        return self.told[before:]


def said(told: list[tuple[float, Verdict]]) -> list[tuple[str | None, str]]:
    return [(verdict.device, verdict.source) for _, verdict in told]


# Wills and exits


@pytest.mark.parametrize(("role", "after"), [("supervisor", 0.0), ("worker", WORD_S)])
def test_the_last_will_of_the_present_connection_is_a_verdict(role: str, after: float) -> None:
    site = Site("a", "b")
    site.detector.will("a", role, f"a-{role[0]}1", site.now, 5, 3)  # type: ignore[arg-type]
    assert site.detector.pause(site.now) == pytest.approx(after or TICK_S)
    if after:
        assert site.tick() == ()
    site.now += after
    (verdict,) = site.tick()
    assert (verdict.device, verdict.source, verdict.worst_s) == ("a", "will", will_worst_s(5, 3))
    assert role in verdict.reason
    assert verdict.worst_s >= 1.5 * 5 + 3 + after
    assert site.detector.pause(site.now) == TICK_S
    assert site.run(60) == []


def test_the_supervisors_word_is_preferred_to_the_will_of_its_worker() -> None:
    site = Site("a", "b")
    site.detector.will("a", "worker", "a-w1", site.now, 60)
    site.now += WORD_S / 2
    site.detector.exited("a", "killed by SIGKILL")
    assert [(v.source, v.reason) for v in site.tick()] == [("exit", "killed by SIGKILL")]
    assert site.run(60) == []


def test_a_worker_that_speaks_again_at_once_is_not_lost() -> None:
    site = Site("a", "b")
    site.detector.will("a", "worker", "a-w1", site.now, 60)
    site.detector.born("a", "worker", "a-w2")
    site.now += WORD_S
    assert site.tick() == ()


def test_a_will_that_waits_for_a_better_reason_is_told_though_the_generation_ends() -> None:
    site = Site("a", "b")
    site.detector.will("a", "worker", "a-w1", site.now, 60)
    site.detector.start(1, (), site.now)
    assert said([(site.now, v) for v in site.tick()]) == [("a", "will")]
    site.now += WORD_S
    assert site.tick() == ()


def test_the_will_of_an_older_connection_of_the_other_role_or_of_a_stranger_says_nothing() -> None:
    site = Site("a", "b")
    site.detector.born("a", "worker", "a-w2")
    site.detector.will("a", "worker", "a-w1", site.now, 60)
    site.detector.will("a", "supervisor", "a-w2", site.now, 5)
    site.detector.will("c", "worker", "c-w1", site.now, 60)
    site.detector.born("c", "worker", "c-w1")
    site.detector.will("c", "worker", "c-w1", site.now, 60)
    site.now += WORD_S
    assert site.tick() == ()


def test_an_exit_is_a_verdict_at_once_with_the_words_of_the_supervisor() -> None:
    site = Site("a", "b")
    site.detector.exited("b", "its worker was killed by SIGKILL: out of memory")
    (verdict,) = site.tick()
    assert (verdict.device, verdict.source) == ("b", "exit")
    assert verdict.reason == "its worker was killed by SIGKILL: out of memory"


def test_a_device_is_reported_once_in_a_generation_and_again_in_the_next_one() -> None:
    site = Site("a", "b", "c")
    site.detector.exited("a", "exit code 1")
    site.detector.will("a", "worker", "a-w1", site.now, 60)
    assert said([(site.now, v) for v in site.tick()]) == [("a", "exit")]
    site.detector.exited("a", "exit code 1")
    site.frozen.add("a")
    assert site.run(60) == []
    site.detector.start(2, ["a", "b"], site.now)
    site.detector.exited("a", "exit code 1")
    assert len(site.tick()) == 1


def test_news_that_came_before_a_generation_are_not_told_in_it() -> None:
    site = Site("a", "b")
    site.detector.exited("a", "exit code 1")
    site.detector.start(2, ["a", "b"], site.now)
    assert site.tick() == ()


# Heartbeat


def test_a_frozen_device_is_found_soon_when_its_beats_were_regular() -> None:
    site = Site("a", "b", "c")
    assert site.run(60) == []
    site.frozen.add("b")
    ((at, verdict),) = site.run(60)
    assert (verdict.device, verdict.source) == ("b", "heartbeat")
    assert at - 160.0 <= FLOOR_S + TICK_S + BEAT_S
    assert verdict.worst_s <= HEARTBEAT_WORST_S


def test_a_device_that_never_beat_is_found() -> None:
    site = Site("a", "b")
    site.frozen.add("a")
    ((at, verdict),) = site.run(60)
    assert verdict.device == "a"
    assert at <= 100.0 + HEARTBEAT_WORST_S


def test_the_deadline_follows_the_gaps_of_the_device() -> None:
    site = Site("a", "b")
    site.frozen.add("a")
    for _ in range(2 * MEASURED):
        assert site.run(5) == []
        site.beat("a")
    assert site.run(7) == [], "two seconds beyond what it used to take"
    ((at, verdict),) = site.run(10)
    assert verdict.device == "a"
    assert at - site.now <= CEILING_S + TICK_S


def test_several_that_freeze_together_are_found_while_one_is_heard() -> None:
    site = Site("a", "b", "c", "d")
    site.run(30)
    site.frozen |= {"a", "b", "c"}
    assert sorted(said(site.run(20))) == [("a", "heartbeat"), ("b", "heartbeat"), ("c", "heartbeat")]


@pytest.mark.parametrize("devices", [("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("outage", [1.0, 2.5, 9.0, 60.0, 600.0])
def test_an_outage_of_the_broker_blames_nobody_and_who_returns_last_has_time_to_reconnect(
    devices: tuple[str, ...], outage: float
) -> None:
    site = Site(*devices)
    site.run(30)
    site.frozen |= set(devices)
    assert site.run(outage) == []
    site.frozen.remove("b")
    assert site.run(1.0 if outage <= QUIET_S else rejoin_s(outage) - 2 * BEAT_S) == []
    site.frozen.clear()
    assert site.run(30) == []


def test_an_outage_too_short_to_be_noticed_behind_a_gap_is_no_alarm() -> None:
    site = Site("a", "b")
    site.run(60)
    site.frozen = {"a"}
    site.run(2)
    site.frozen = {"a", "b"}
    site.run(1)
    site.frozen = set()
    site.run(30)
    assert site.told == []


def test_who_does_not_return_after_an_outage_is_found() -> None:
    site = Site("a", "b")
    site.run(30)
    site.frozen |= {"a", "b"}
    site.run(60)
    site.frozen.remove("b")
    back = site.now
    ((at, verdict),) = site.run(300)
    assert verdict.device == "a"
    assert at - back <= rejoin_s(60 + QUIET_S) + BEAT_S + TICK_S


def test_the_time_to_reconnect_is_bounded() -> None:
    assert rejoin_s(0.0) == REJOIN_S
    assert rejoin_s(1e6) == REJOIN_MAX_S


@pytest.mark.parametrize("first", ["tick", "beat"])
@pytest.mark.parametrize("devices", [("a",), ("a", "b")])
def test_a_coordinator_that_was_suspended_blames_nobody(first: str, devices: tuple[str, ...]) -> None:
    site = Site(*devices)
    site.run(30)
    site.now += 3600
    if first == "tick":
        assert site.tick() == ()
    site.beat("a")
    assert site.tick() == ()
    assert site.run(60) == []


def test_a_lone_device_has_a_longer_deadline() -> None:
    site = Site("a")
    site.run(30)
    site.frozen.add("a")
    assert site.run(LONE_S - BEAT_S) == []
    ((_, verdict),) = site.run(10)
    assert (verdict.device, verdict.source, verdict.worst_s) == ("a", "heartbeat", LONE_WORST_S)


def test_a_device_is_lone_when_the_others_are_lost() -> None:
    site = Site("a", "b")
    site.run(30)
    site.detector.exited("b", "exit code 1")
    site.frozen |= {"a", "b"}
    assert said(site.run(LONE_S - BEAT_S)) == [("b", "exit")]
    assert said(site.run(10)) == [("a", "heartbeat")]


@pytest.mark.parametrize("devices", [("a",), ("a", "b")])
def test_nobody_is_judged_while_our_own_link_is_down(devices: tuple[str, ...]) -> None:
    site = Site(*devices)
    site.run(30)
    site.frozen |= set(devices)
    site.run(5)
    site.detector.link(site.now, up=False)
    assert site.run(600) == []
    site.detector.link(site.now, up=True)
    assert site.run(REJOIN_S) == []
    site.frozen.clear()
    assert site.run(60) == []


def test_no_device_no_verdict() -> None:
    detector = Detector()
    assert detector.verdicts(1e6) == ()
    detector.start(1, (), 0.0)
    assert detector.verdicts(1.0) == ()


# Beats that say nothing


@pytest.mark.parametrize(
    "wrong",
    [{"generation": 0}, {"generation": 2}, {"connection": "a-w0"}, {"count": 1}],
    ids=["older generation", "newer generation", "stale connection", "old count"],
)
def test_beats_of_another_generation_or_connection_or_older_ones_say_nothing(wrong: dict[str, object]) -> None:
    site = Site("a", "b")
    site.run(30)
    site.frozen.add("a")
    found: list[tuple[float, Verdict]] = []
    for _ in range(30):
        site.beat("a", **wrong)
        found += site.run(0.5)
        site.beat("b")
    assert said(found) == [("a", "heartbeat")]


def test_a_doubled_beat_is_not_a_gap() -> None:
    once, twice = Site("a", "b"), Site("a", "b")
    for _ in range(30):
        for site in (once, twice):
            site.run(1)
        twice.beat("a", count=twice.count["a"])
        twice.count["a"] -= 1
    for site in (once, twice):
        site.frozen.add("a")
        site.run(30)
    assert once.told == twice.told != []


def test_a_new_process_on_a_new_connection_counts_from_the_beginning() -> None:
    site = Site("a", "b")
    site.run(30)
    site.detector.born("a", "worker", "a-w2")
    site.frozen.add("a")
    for count in range(1, 40):
        site.beat("a", connection="a-w2", count=count)
        site.beat("a", connection="a-w1", count=1000 + count)
        assert site.run(1) == []


# Late


def chain(site: Site) -> None:
    """A waits for b, and b for c."""
    site.waiting = {"a": ("b",), "b": ("c",)}
    site.late = {"a", "b"}


def test_only_the_root_of_a_chain_of_waits_is_blamed() -> None:
    site = Site("a", "b", "c")
    site.run(20)
    chain(site)
    site.stuck.add("c")
    since = site.now
    ((at, verdict),) = site.run(300)
    assert (verdict.device, verdict.source) == ("c", "late")
    assert STALL_S < at - since <= stall_worst_s(STALL_S) == verdict.worst_s


def test_a_root_that_moves_is_slow_and_no_failure() -> None:
    site = Site("a", "b", "c")
    chain(site)
    assert site.run(3600) == []


def test_a_root_that_moves_seldom_is_slow_too() -> None:
    site = Site("a", "b", "c")
    chain(site)
    site.stuck.add("c")
    for _ in range(20):
        assert site.run(STALL_S - 2 * BEAT_S) == []
        site.progress["c"] += 1


def test_nobody_is_blamed_for_standing_still_if_nobody_is_late() -> None:
    site = Site("a", "b", "c")
    chain(site)
    site.late.clear()
    site.stuck.add("c")
    assert site.run(3600) == []


def test_patience_with_a_root_follows_the_predicted_round_and_what_it_took_before() -> None:
    site = Site("a", "b", predicted_s=100.0)
    site.waiting, site.late, site.stuck = {"a": ("b",)}, {"a"}, {"b"}
    assert site.run(STALL_FACTOR * 100) == []
    assert said(site.run(10)) == [("b", "late")]
    site = Site("a", "b")
    site.stuck.add("b")
    site.run(60)
    site.progress["b"] += 1
    site.run(2)
    site.waiting, site.late = {"a": ("b",)}, {"a"}
    assert site.run(STALL_FACTOR * 55) == []
    assert said(site.run(STALL_FACTOR * 10)) == [("b", "late")]


def test_time_that_a_root_has_waited_itself_is_not_held_against_it() -> None:
    site = Site("a", "b", "c")
    site.waiting, site.late = {"a": ("b",), "b": ("c",)}, {"a"}
    site.run(10 * STALL_S)
    site.waiting["b"] = ()
    site.stuck.add("b")
    assert site.run(STALL_S) == []
    assert said(site.run(5)) == [("b", "late")]


def test_a_root_that_is_frozen_is_found_by_its_heart_and_nobody_else_is_blamed() -> None:
    site = Site("a", "b", "c")
    site.run(20)
    chain(site)
    site.frozen.add("c")
    assert said(site.run(600)) == [("c", "heartbeat")]


def test_an_outage_does_not_count_as_standing_still() -> None:
    site = Site("a", "b", "c")
    site.run(20)
    chain(site)
    site.stuck.add("c")
    for _ in range(10):
        assert site.run(STALL_S - 5) == []
        site.frozen = {"a", "b", "c"}
        assert site.run(10) == []
        site.frozen = set()


def test_who_waits_for_the_coordinator_or_for_a_lost_device_blames_nobody() -> None:
    site = Site("a", "b", "c")
    site.waiting = {"a": ("b",), "b": ("coordinator",), "c": ("a",)}
    site.late = {"a", "b", "c"}
    assert site.run(600) == []
    site.waiting["b"] = ("d",)
    assert site.run(600) == []


def test_a_root_is_blamed_though_the_waiter_waits_for_the_coordinator_too() -> None:
    site = Site("a", "b")
    site.waiting, site.late, site.stuck = {"a": ("coordinator", "b")}, {"a"}, {"b"}
    assert said(site.run(60)) == [("b", "late")]


def test_a_circle_of_waits_blames_no_device_and_is_said_once() -> None:
    site = Site("a", "b", "c")
    site.run(20)
    site.waiting = {"a": ("b",), "b": ("c",), "c": ("a", "b")}
    site.late = {"a", "c"}
    since = site.now
    ((at, verdict),) = site.run(600)
    assert (verdict.device, verdict.source) == (None, "stuck")
    assert at - since <= stall_worst_s(STALL_S) == verdict.worst_s
    assert "a, b, c wait for each other" in verdict.reason


def test_a_circle_through_which_tensors_still_come_is_slow() -> None:
    site = Site("a", "b")
    site.waiting, site.late = {"a": ("b",), "b": ("a",)}, {"a", "b"}
    for _ in range(100):
        assert site.run(20) == []
        site.progress["a"] += 1


def test_a_circle_that_somebody_outside_can_break_is_none() -> None:
    site = Site("a", "b", "c")
    site.waiting, site.late = {"a": ("b",), "b": ("a", "c")}, {"a", "b"}
    assert site.run(600) == []


# Patience


def test_patience_begins_with_the_prediction_and_follows_the_longest_lately() -> None:
    assert Patience().seconds == PATIENCE_FLOOR_S
    patience = Patience(predicted_s=20.0)
    assert patience.seconds == FACTOR * 20.0
    patience = patience.after(50.0)
    assert patience.seconds == FACTOR * 50.0
    assert patience.after(1.0).seconds == pytest.approx(FACTOR * 50.0 * FADE)
    for _ in range(100):
        patience = patience.after(1.0)
    assert patience.seconds == PATIENCE_FLOOR_S


def test_patience_that_does_not_fade_keeps_the_longest() -> None:
    assert Patience(fade=1.0).after(50.0).after(1.0).longest_s == 50.0
