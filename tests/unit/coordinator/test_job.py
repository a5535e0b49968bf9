"""The job's state machine: every event in every phase has an answer, and losses lead to a new plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asteroid_coordinator.job import state as s
from asteroid_coordinator.job.decide import LATE, ImpossibleEventError, decide
from asteroid_core.plan import Plan, Share, Stage


def plan(generation: int, *devices: str) -> Plan:
    """One stage a device."""
    stages = tuple(
        Stage(lo=i, hi=i + 1, shares=(Share(device=d, samples=2),), warm_up=1) for i, d in enumerate(devices)
    )
    return Plan(generation=generation, stages=stages, micro_size=2, micro_count=2)


def play(job: s.Job, *events: s.JobEvent) -> tuple[s.Job, list[s.Effect]]:
    """Apply events; returns the effects of the last one."""
    effects: list[s.Effect] = []
    for event in events:
        job, effects = decide(job, event)
    return job, effects


def ready(agent: str, generation: int = 1) -> tuple[s.WorkerMoved, ...]:
    """What a worker says until it is ready."""
    return tuple(s.WorkerMoved(agent, word, generation, connection=f"c-{agent}") for word in ("loading", "ready"))


START: tuple[s.JobEvent, ...] = (
    s.Submitted("train"),
    s.Imported(10),
    s.Profiled(("a", "b")),
    s.Planned(plan(1, "a", "b")),
)
RUNNING: tuple[s.JobEvent, ...] = (*START, *ready("a"), *ready("b"))


def _kinds(effects: list[s.Effect]) -> list[str]:
    return [type(e).__name__ for e in effects if not isinstance(e, s.Say)]


def test_the_way_to_running() -> None:
    job, effects = play(s.Job("j"), *START[:1])
    assert (job.phase, _kinds(effects)) == ("profiling", ["Import"])
    job, effects = play(job, *START[1:2])
    assert _kinds(effects) == ["Profile"]
    job, effects = play(job, START[2])
    assert (job.phase, _kinds(effects)) == ("planning", ["MakePlan"])
    job, effects = play(job, START[3])
    assert (job.phase, _kinds(effects)) == ("preparing", ["Prepare"])
    job, effects = play(job, *ready("a")[:1])
    assert effects == [s.SendProgram("a")]
    job, effects = play(job, *ready("a")[1:], *ready("b"))
    assert (job.phase, _kinds(effects)) == ("running", ["Feed"])


def test_a_round_is_completed_when_all_have_stepped_it() -> None:
    job, _ = play(s.Job("j"), *RUNNING, s.RoundDone("a", 1, 0), s.RoundDone("a", 1, 1))
    assert job.completed == 0
    job, _ = play(job, s.RoundDone("b", 1, 0))
    assert job.completed == 1
    job, _ = play(job, s.RoundDone("b", 1, 1), s.RoundDone("b", 7, 2))
    assert job.completed == 2


def test_it_is_done_when_all_have_finished_and_everything_is_durable() -> None:
    job, _ = play(s.Job("j"), *RUNNING, s.WorkerFinished("a", 1), s.WorkerFinished("b", 1))
    assert job.phase == "running"
    job, effects = play(job, s.Checkpointed(10))
    assert (job.phase, _kinds(effects)) == ("done", ["StopFeed", "Export", "Release"])


@pytest.mark.parametrize(
    "loss",
    [
        s.WorkerMoved("b", "failed", 1, "out of memory"),
        s.WorkerMoved("b", "lost", 1, connection="c-b"),
        s.WorkerMoved("b", "exited", 1),
        s.DeviceGone("b", "the broker lost its connection"),
    ],
)
def test_a_loss_goes_back_to_the_durable_round_without_the_device(loss: s.JobEvent) -> None:
    rounds = [s.RoundDone(d, 1, r) for r in range(6) for d in "ab"]
    job, effects = play(s.Job("j"), *RUNNING, *rounds, s.Checkpointed(4), loss)
    assert (job.phase, job.completed, job.durable) == ("planning", 6, 4)
    assert s.MakePlan(2, frozenset({"b"})) in effects
    assert s.StopFeed() in effects
    job, effects = play(job, s.Planned(plan(2, "a")))
    assert s.Prepare(job.plan, 4) in effects  # type: ignore[arg-type]
    assert (job.generation, job.completed, job.start_round) == (2, 4, 4)
    job, effects = play(job, *ready("a", 2))
    assert s.Feed(4) in effects


@pytest.mark.parametrize(
    "late",
    [
        s.WorkerMoved("b", "lost", 1, connection="an older one"),
        s.WorkerMoved("x", "lost", 1, connection="c-x"),
        s.DeviceGone("x", "not in the plan"),
        s.RoundDone("a", 0, 3),
        s.WorkerFinished("a", 0),
        s.Planned(plan(1, "a", "b")),
        s.Late(1),
        s.Late(0),
    ],
)
def test_what_comes_late_changes_nothing(late: s.JobEvent) -> None:
    job, _ = play(s.Job("j"), *RUNNING)
    assert decide(job, late) == (job, [])


def test_a_plan_with_a_device_lost_meanwhile_is_not_used() -> None:
    job, _ = play(s.Job("j"), *START[:3], s.DeviceGone("b", "gone"))
    assert job.phase == "planning"
    same, effects = decide(job, s.Planned(plan(1, "a", "b")))
    assert (same, effects) == (job, [])


def test_who_is_not_ready_in_time_is_left_out() -> None:
    job, effects = play(s.Job("j"), *START, *ready("a"), s.Late(1))
    assert job.phase == "planning"
    assert s.MakePlan(2, frozenset({"b"})) in effects


def test_a_device_that_is_born_again_may_take_part_again() -> None:
    job, _ = play(s.Job("j"), *RUNNING, s.DeviceGone("b", "gone"), s.DeviceBack("b"))
    assert not job.excluded


def test_stopped_and_failed_jobs_release_their_workers_and_hear_nothing_more() -> None:
    for event, phase in ((s.StopAsked(), "stopped"), (s.Broken("What.", "Do.", 2), "failed")):
        job, effects = play(s.Job("j"), *RUNNING, event)
        assert job.phase == phase
        assert _kinds(effects) == ["StopFeed", "Release"]
        assert decide(job, s.DeviceGone("a", "gone")) == (job, [])
    assert (job.reason, job.remedy, job.exit_code) == ("What.", "Do.", 2)


def test_a_resumed_job_begins_at_its_durable_round() -> None:
    job, _ = play(s.Job("j"), s.Submitted("train", durable=7, generation=3), *START[1:3])
    job, effects = play(job, s.Planned(plan(4, "a")))
    assert s.Prepare(job.plan, 7) in effects  # type: ignore[arg-type]


def test_a_second_submission_of_a_running_job_is_a_bug() -> None:
    job, _ = play(s.Job("j"), *RUNNING)
    with pytest.raises(ImpossibleEventError):
        decide(job, s.Submitted("train"))


EVENTS = [
    s.Imported(10), s.Profiled(("a",)), s.Planned(plan(1, "a", "b")), s.Planned(plan(2, "a")), *ready("a"), *ready("b"),
    *ready("a", 2), s.RoundDone("a", 1, 0), s.RoundDone("b", 1, 0), s.WorkerFinished("a", 1), s.Checkpointed(10),
    s.Checkpointed(3), s.DeviceGone("a", "x"), s.DeviceGone("b", "x"), s.DeviceBack("a"), s.Late(1), s.Late(2),
    s.StopAsked(), s.Broken("x"), s.WorkerMoved("b", "failed", 1, "x"),
]  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_any_story_keeps_the_invariants(events: list[s.JobEvent]) -> None:
    job, _ = play(s.Job("j"), s.Submitted("train"))
    for event in events:
        before = job
        job, effects = decide(job, event)
        assert job.durable >= before.durable
        assert job.generation >= before.generation
        assert before.phase not in s.ENDED or job == before
        for effect in effects:
            if isinstance(effect, s.MakePlan):
                assert effect.generation == job.generation + 1
        if job.plan is not None and job.phase in ("preparing", "running"):
            assert not {name for name, _ in job.excluded} & set(job.plan.devices) or job.plan.generation == 0


def test_every_event_that_may_come_late_says_why() -> None:
    assert set(LATE) <= {t.__name__ for t in s.JobEvent.__args__}
    assert replace(s.Job("j"), phase="done").phase in s.ENDED
