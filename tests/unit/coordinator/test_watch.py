"""What a job hears of its workers while it runs, and what it deals with itself in other phases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.coordinator.test_job import RUNNING, START, play, ready

from asteroid_coordinator.job import state as s
from asteroid_coordinator.watch import Watch
from asteroid_core.detector import (
    BEAT_S,
    EXIT_WORST_S,
    HEARTBEAT_WORST_S,
    STALL_S,
    TICK_S,
    WORD_S,
    rejoin_s,
    stall_worst_s,
    will_worst_s,
)
from asteroid_core.link.base import SUPERVISOR_KEEPALIVE_S, SUPERVISOR_WILL_DELAY_S, WORKER_KEEPALIVE_S
from asteroid_core.wire.messages import Beat


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.time = 50.0

    def now(self) -> float:
        return self.time


class World:
    """A watch whose thread is not started, and a job with workers on a and b."""

    def __init__(self, *events: s.JobEvent) -> None:
        self.clock, self.told = Clock(), list[s.JobEvent]()
        self.watch = Watch("j", self.told.append, self.clock)
        self.job, self.count = s.Job("j"), 0
        self.silent: set[str] = set()
        self.waits: dict[str, tuple[str, ...]] = {}
        for event in events:
            self.take(event)
        self.turn()

    def take(self, event: s.JobEvent) -> bool:
        """As the job's thread does; returns whether the job itself was asked."""
        if self.watch.takes(self.job, event):
            return False
        self.job, _ = play(self.job, event)
        self.watch.follow(self.job)
        return True

    def turn(self) -> None:
        while self.watch.turn(0.0):
            pass

    def run(self, seconds: float) -> None:
        for step in range(round(seconds / TICK_S)):
            self.clock.time += TICK_S
            if step % round(BEAT_S / TICK_S) == 0:
                self.count += 1
                for device in {"a", "b"} - self.silent:
                    self.beat(device)
            self.turn()

    def beat(self, device: str) -> None:
        waiting = self.waits.get(device, ())
        progress = 0 if self.waits else self.count
        message = Beat(
            agent=device,
            job="j",
            generation=self.job.generation,
            connection=f"c-{device}",
            count=self.count,
            progress=progress,
            waiting=waiting,
            late=bool(waiting),
        )
        self.watch.beat(message)


def test_a_worker_that_hangs_is_reported_with_source_and_worst_case() -> None:
    world = World(*RUNNING)
    world.run(30)
    assert world.told == []
    world.silent.add("b")
    world.run(HEARTBEAT_WORST_S)
    (gone,) = world.told
    assert isinstance(gone, s.DeviceGone)
    assert (gone.device, gone.source) == ("b", "heartbeat")
    assert 0 < gone.worst_s <= HEARTBEAT_WORST_S
    assert world.take(gone), "the detector's own verdict is for the job"
    assert world.job.phase == "planning"


def test_the_supervisors_word_comes_before_the_will_of_its_worker() -> None:
    world = World(*RUNNING)
    assert not world.take(s.WorkerMoved("b", "lost", 1, "its connection broke", "c-b"))
    world.turn()
    assert not world.take(s.WorkerMoved("b", "failed", 1, "killed by SIGKILL", "supervisor"))
    world.turn()
    world.run(5)
    assert world.told == [
        s.DeviceGone("b", "its worker failed: killed by SIGKILL", source="exit", worst_s=EXIT_WORST_S)
    ]


def test_a_will_without_a_word_counts_a_little_later() -> None:
    world = World(*RUNNING)
    world.take(s.WorkerMoved("b", "lost", 1, connection="c-b"))
    world.turn()
    assert world.told == []
    world.clock.time += WORD_S
    world.turn()
    (gone,) = world.told
    assert isinstance(gone, s.DeviceGone)
    assert (gone.source, gone.worst_s) == ("will", will_worst_s(WORKER_KEEPALIVE_S))


def test_the_will_of_an_older_connection_of_a_worker_says_nothing() -> None:
    world = World(*RUNNING)
    assert not world.take(s.WorkerMoved("b", "lost", 1, connection="an older one"))
    world.run(10)
    assert world.told == []


def test_the_will_of_a_supervisor_is_a_verdict_and_a_device_that_leaves_is_none() -> None:
    world = World(*RUNNING)
    assert not world.take(s.DeviceGone("a", "the broker lost its connection", connection="x"))
    world.turn()
    (gone,) = world.told
    assert isinstance(gone, s.DeviceGone)
    assert (gone.device, gone.source) == ("a", "will")
    assert gone.worst_s == will_worst_s(SUPERVISOR_KEEPALIVE_S, SUPERVISOR_WILL_DELAY_S)
    assert world.take(s.DeviceGone("b", "asked to leave"))


@pytest.mark.parametrize(
    "loss",
    [
        s.WorkerMoved("b", "lost", 1, connection="c-b"),
        s.WorkerMoved("b", "failed", 1, "out of memory", "supervisor"),
        s.DeviceGone("b", "the broker lost its connection", connection="x"),
    ],
)
def test_before_a_job_runs_it_deals_with_losses_itself(loss: s.JobEvent) -> None:
    world = World(*START, *ready("b"))
    phases = [world.job.phase]
    assert world.take(loss)
    assert [*phases, world.job.phase] == ["preparing", "planning"]
    world.silent |= {"a", "b"}
    world.run(60)
    assert world.told == []


def test_a_loss_on_the_heels_of_the_last_ready_is_not_missed() -> None:
    world = World(*START, *ready("b"))
    for event in (*ready("a"), s.WorkerMoved("b", "failed", 1, "killed by SIGSEGV")):
        world.take(event)
    world.turn()
    assert [gone.device for gone in world.told if isinstance(gone, s.DeviceGone)] == ["b"]


def test_a_will_is_told_though_the_job_stops_running_while_it_waits_for_a_word() -> None:
    world = World(*RUNNING)
    world.take(s.WorkerMoved("b", "lost", 1, connection="c-b"))
    world.take(s.DeviceGone("a", "asked to leave"))
    world.turn()
    assert [gone.device for gone in world.told if isinstance(gone, s.DeviceGone)] == ["b"]


def test_nobody_is_judged_while_our_link_is_down() -> None:
    world = World(*RUNNING)
    world.run(20)
    world.silent |= {"b"}
    world.watch.link(up=False)
    world.run(60)
    assert world.told == []
    world.watch.link(up=True)
    world.run(rejoin_s(60) + 1)
    assert len(world.told) == 1


def test_a_watch_that_comes_late_judges_by_the_time_at_which_things_happened() -> None:
    world = World(*RUNNING)
    world.run(20)
    for _ in range(60):
        world.clock.time += BEAT_S
        world.count += 1
        world.beat("a")
        world.beat("b")
    world.turn()
    assert world.told == []


def test_a_round_in_which_all_wait_for_each_other_is_to_be_repeated() -> None:
    world = World(*RUNNING)
    world.run(5)
    world.waits = {"a": ("b",), "b": ("a",)}
    world.run(stall_worst_s(STALL_S) + 2 * BEAT_S)
    (stuck,) = world.told
    assert isinstance(stuck, s.Stuck)
    assert (stuck.generation, stuck.worst_s) == (1, stall_worst_s(STALL_S))
    assert world.take(stuck)
    assert world.job.phase == "halting"
    world.run(60)
    assert len(world.told) == 1


def test_strangers_are_the_jobs_own_business() -> None:
    world = World(*RUNNING)
    before = replace(world.job)
    assert world.take(s.WorkerMoved("x", "failed", 1))
    assert world.take(s.DeviceGone("x", "gone", connection="y"))
    assert world.job == before


def test_its_thread_tells_and_ends() -> None:
    told: list[s.JobEvent] = []
    watch = Watch("j", told.append)
    watch.follow(play(s.Job("j"), *RUNNING)[0])
    watch.start()
    watch.takes(play(s.Job("j"), *RUNNING)[0], s.WorkerMoved("b", "failed", 1, "x"))
    watch.stop()
    watch.join(5.0)
    assert not watch.is_alive()
