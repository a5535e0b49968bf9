"""The job's state machine: every event in every phase has an answer, and losses lead to a new plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asteroid_coordinator.job import state as s
from asteroid_coordinator.job.decide import LATE, ImpossibleEventError, decide
from asteroid_core.held import Held, Source
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
    job, effects = play(job, *ready("a"), *ready("b"))
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
    job, effects = play(job, s.Checkpointed(10, 1))
    assert (job.phase, _kinds(effects)) == ("done", ["StopFeed", "Export", "Release"])


def test_a_worker_with_nothing_left_to_do_may_finish_before_another_ones_ready_is_heard() -> None:
    resumed: tuple[s.JobEvent, ...] = (s.Submitted("train", saved=10), *START[1:])
    job, _ = play(s.Job("j"), *resumed, *ready("a"), s.WorkerFinished("a", 1))
    assert job.phase == "preparing"
    job, effects = play(job, *ready("b"), s.WorkerFinished("b", 1))
    assert (job.phase, _kinds(effects)) == ("done", ["StopFeed", "Export", "Release"])


def test_a_round_counts_although_its_report_overtakes_the_word_that_a_worker_is_ready() -> None:
    job, _ = play(s.Job("j"), *START, *ready("a"), s.RoundDone("b", 1, 0))
    assert (job.phase, job.completed) == ("preparing", 0)
    job, _ = play(job, *ready("b"), s.RoundDone("a", 1, 0))
    assert (job.phase, job.completed) == ("running", 1)


def test_workers_do_not_wait_for_a_checkpoint_that_an_older_generation_has_made_already() -> None:
    job, _ = play(s.Job("j"), *RUNNING, s.Checkpointed(2, 1), s.DeviceGone("b", "gone"))
    job, _ = play(job, s.Planned(plan(2, "a", "c"), "replay"), *ready("a", 2), *ready("c", 2))
    job, _ = play(job, s.Checkpointed(4, 1))
    assert (job.phase, job.saved, job.durable) == ("running", 4, 2)
    job, effects = play(job, s.Checkpointed(4, 2))
    assert (job.saved, job.durable, job.durable_generation, effects) == (4, 4, 2, [])


def test_a_worker_that_was_started_anew_has_lost_what_it_held_although_no_will_came() -> None:
    again = s.WorkerMoved("b", "starting", 0, connection="another")
    running, _ = play(s.Job("j"), *RUNNING, s.Kept(Held(device="b", generation=1, rounds=2, lo=0, hi=2), 1))
    job, _ = play(running, again)
    assert (job.phase, dict(job.excluded)) == ("planning", {"b": "its worker was started anew"})
    assert not any(item.device == "b" for item in job.held)
    preparing, _ = play(running, s.DeviceGone("a", "gone"), s.Planned(plan(2, "b", "c"), "replay"))
    assert preparing.phase == "preparing"
    job, _ = play(preparing, again)
    assert (job.phase, dict(job.excluded)["b"]) == ("planning", "its worker was started anew")


def test_the_first_words_of_a_worker_that_nobody_relies_on_yet_and_old_ones_that_come_again_mean_nothing() -> None:
    job, _ = play(s.Job("j"), *START, s.WorkerMoved("b", "starting", 0, connection="c-b"))
    job, _ = play(job, s.WorkerMoved("b", "starting", 0, connection="another"))
    assert (job.phase, job.excluded) == ("preparing", ())
    job, _ = play(s.Job("j"), *RUNNING, s.WorkerMoved("b", "starting", 0, connection="c-b"))
    assert (job.phase, job.excluded) == ("running", ())


def test_the_start_round_is_not_durable_again_before_all_have_loaded_it() -> None:
    whole = Stage(lo=0, hi=2, shares=tuple(Share(device=d, samples=1) for d in "abc"), warm_up=1)
    three = Plan(generation=2, stages=(whole,), micro_size=3, micro_count=1)
    job, _ = play(s.Job("j"), *RUNNING, *(kept(d, 2, 0, 2) for d in "ab"), s.DeviceGone("b", "gone"))
    job = replace(job, excluded=())
    job, _ = play(job, s.Planned(three, "replay"), *ready("a", 2), *ready("b", 2))
    job, _ = play(job, *(kept(d, 2, 0, 2, 2) for d in "ab"))
    assert (job.phase, job.durable, job.durable_generation) == ("preparing", 2, 1)  # c may still ask for old copies
    job, _ = play(job, *ready("c", 2))
    assert (job.phase, job.durable, job.durable_generation) == ("running", 2, 2)


LOSSES: list[s.JobEvent] = [
    s.WorkerMoved("b", "failed", 1, "out of memory"),
    s.WorkerMoved("b", "lost", 1, connection="c-b"),
    s.WorkerMoved("b", "exited", 1),
    s.DeviceGone("b", "the broker lost its connection"),
]


def kept(device: str, rounds: int, lo: int, hi: int, generation: int = 1) -> s.Kept:
    """A device keeps a snapshot."""
    return s.Kept(Held(device=device, generation=generation, rounds=rounds, lo=lo, hi=hi), generation)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_of_a_whole_stage_goes_back_to_what_is_saved(loss: s.JobEvent) -> None:
    rounds = [s.RoundDone(d, 1, r) for r in range(6) for d in "ab"]
    job, effects = play(s.Job("j"), *RUNNING, *rounds, s.Checkpointed(4, 1), loss)
    assert (job.phase, job.completed, job.durable, job.saved) == ("planning", 6, 4, 4)
    assert s.MakePlan(2, frozenset({"b"}), "replay", plan(1, "a", "b")) in effects
    assert s.StopFeed() in effects
    job, effects = play(job, s.Planned(plan(2, "a"), "replay"))
    prepare = _prepare(effects)
    assert (prepare.start_round, prepare.saved, prepare.live) == (4, True, False)
    assert dict(prepare.sources) == {"a": (Source(device="coordinator", lo=0, hi=1),)}
    assert (job.generation, job.completed, job.start_round) == (2, 4, 4)
    job, effects = play(job, *ready("a", 2))
    assert s.Feed(4) in effects


def _prepare(effects: list[s.Effect]) -> s.Prepare:
    (found,) = [e for e in effects if isinstance(e, s.Prepare)]
    return found


def test_a_round_is_durable_when_every_layer_is_kept_twice() -> None:
    job, _ = play(s.Job("j"), *RUNNING, kept("a", 3, 0, 1), kept("b", 3, 1, 2), kept("b", 3, 0, 1))
    assert job.durable == 0
    job, _ = play(job, kept("a", 3, 1, 2, generation=0), kept("x", 3, 1, 2))
    assert job.durable == 0
    job, _ = play(job, kept("a", 3, 1, 2))
    assert (job.durable, job.durable_generation, job.saved) == (3, 1, 0)
    assert {h.rounds for h in job.held} == {3}


def test_the_loss_of_a_stage_is_answered_from_its_backup() -> None:
    copies = [kept(d, r, lo, lo + 1) for r in (2, 4) for d in "ab" for lo in (0, 1)]
    pending = [kept("a", 6, 0, 1), kept("b", 6, 1, 2)]
    job, _ = play(s.Job("j"), *RUNNING, *copies, *pending, s.DeviceGone("b", "gone"))
    assert (job.phase, job.durable) == ("planning", 4)
    job, effects = play(job, s.Planned(whole(2, "a"), "replay"))
    prepare = _prepare(effects)
    assert (prepare.start_round, prepare.base, prepare.saved) == (4, 4, False)
    assert dict(prepare.sources) == {"a": (Source(device="a", lo=0, hi=2),)}
    assert {(h.device, h.rounds) for h in job.held} == {("a", 4)}


def test_the_newest_round_that_is_whole_is_taken_even_if_it_was_not_durable_yet() -> None:
    copies = [kept(d, 4, lo, lo + 1) for d in "ab" for lo in (0, 1)]
    job, _ = play(s.Job("j"), *RUNNING, *copies, kept("a", 6, 0, 1), kept("a", 6, 1, 2), s.DeviceGone("b", "gone"))
    job, effects = play(job, s.Planned(whole(2, "a"), "replay"))
    assert _prepare(effects).start_round == 6


def test_a_device_and_its_backup_lost_together_cost_the_rounds_since_the_checkpoint() -> None:
    copies = [kept(d, 4, lo, lo + 1) for d in "bc" for lo in (0, 1)]
    start = (*START[:2], s.Profiled(("a", "b", "c")), s.Planned(plan(1, "a", "b", "c")))
    job, _ = play(s.Job("j"), *start, *ready("a"), *ready("b"), *ready("c"), s.Checkpointed(2, 1))
    job, _ = play(job, *copies, kept("a", 4, 2, 3), kept("c", 4, 2, 3))
    assert job.durable == 4
    job, effects = play(
        job, s.DeviceGone("b", "gone"), s.DeviceGone("c", "gone"), s.Planned(whole(2, "a", 3), "replay")
    )
    assert (_prepare(effects).start_round, job.durable) == (2, 2)


def test_a_snapshot_of_an_abandoned_round_is_no_longer_counted_on() -> None:
    job, _ = play(s.Job("j"), *RUNNING, kept("a", 5, 0, 1), s.CheckpointFailed(5), kept("b", 5, 1, 2))
    assert (job.held, job.abandoned) == (frozenset(), 5)


def test_a_device_that_the_new_plan_leaves_out_is_no_source() -> None:
    start = (*START[:2], s.Profiled(("a", "b", "c")), s.Planned(plan(1, "a", "b", "c")))
    job, _ = play(s.Job("j"), *start, *ready("a"), *ready("b"), *ready("c"), s.Checkpointed(2, 1))
    job, _ = play(job, *(kept(d, 4, n, n + 1) for d in "ac" for n in range(3)), s.DeviceGone("b", "gone"))
    job, effects = play(job, s.Planned(whole(2, "a", 3), "replay"))
    prepare = _prepare(effects)
    assert (prepare.start_round, dict(prepare.sources)) == (4, {"a": (Source(device="a", lo=0, hi=3),)})
    assert {item.device for item in job.held} == {"a"}


def whole(generation: int, device: str, layers: int = 2) -> Plan:
    """Everything on one device."""
    stage = Stage(lo=0, hi=layers, shares=(Share(device=device, samples=2),), warm_up=1)
    return Plan(generation=generation, stages=(stage,), micro_size=2, micro_count=2)


def group(generation: int, *devices: str) -> Plan:
    """One stage of several devices, and one of c."""
    shares = tuple(Share(device=d, samples=2 // len(devices)) for d in devices)
    first = Stage(lo=0, hi=1, shares=shares, warm_up=1)
    last = Stage(lo=1, hi=2, shares=(Share(device="c", samples=2),), warm_up=1)
    return Plan(generation=generation, stages=(first, last), micro_size=2, micro_count=2)


GROUP: tuple[s.JobEvent, ...] = (
    *START[:2],
    s.Profiled(("a", "b", "c")),
    s.Planned(group(1, "a", "b")),
    *ready("a"),
    *ready("b"),
    *ready("c"),
)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_of_a_group_member_costs_no_round(loss: s.JobEvent) -> None:
    job, effects = play(s.Job("j"), *GROUP, loss)
    assert (job.phase, _kinds(effects)) == ("halting", ["Release", "StopFeed", "Halt"])
    assert s.Release(("b",)) in effects
    assert decide(job, loss) == (job, []), "its will, its exit and its supervisor say the same"
    job, effects = play(job, s.Halted("a", 1, 5, voted=True), s.Halted("b", 1, 5))
    assert effects == []
    job, effects = play(job, s.Halted("c", 1, 5))
    assert s.MakePlan(2, frozenset({"b"}), "regroup", group(1, "a", "b")) in effects
    job, effects = play(job, s.Planned(group(2, "a"), "regroup"))
    prepare = _prepare(effects)
    assert (prepare.live, prepare.start_round, prepare.sources) == (True, 5, ())
    job, effects = play(job, *ready("a", 2), *ready("c", 2))
    assert (job.phase, s.Feed(5) in effects) == ("running", True)


def test_a_round_that_is_stuck_is_run_again_by_the_same_devices() -> None:
    job, effects = play(s.Job("j"), *GROUP, s.Stuck(1, "a, b, c wait for each other", 30.0))
    assert (job.phase, _kinds(effects), job.excluded) == ("halting", ["StopFeed", "Halt"], ())
    assert effects[0] == s.Say("stuck", "round 0 is stuck: a, b, c wait for each other", {"worst_s": 30.0})
    job, effects = play(job, *(s.Halted(d, 1, 5) for d in "abc"))
    assert s.MakePlan(2, frozenset(), "regroup", group(1, "a", "b")) in effects
    job, effects = play(job, s.Planned(group(2, "a", "b"), "regroup"))
    assert _prepare(effects).live
    assert any("all keep their shares and run round 5 again" in e.text for e in effects if isinstance(e, s.Say))
    job, _ = play(job, *ready("a", 2), *ready("b", 2), *ready("c", 2))
    assert job.phase == "running"
    assert decide(job, s.Stuck(1, "late")) == (job, [])


def test_what_the_detector_finds_stands_in_the_event() -> None:
    _, effects = play(s.Job("j"), *RUNNING, s.DeviceGone("b", "silent", source="heartbeat", worst_s=10.5))
    assert effects[:2] == [
        s.Say("device-lost", "b is lost: silent", {"device": "b", "source": "heartbeat", "worst_s": 10.5}),
        s.Release(("b",)),
    ]


def test_if_one_has_stepped_the_others_step_too() -> None:
    job, _ = play(s.Job("j"), *GROUP, LOSSES[3], s.Halted("a", 1, 5, voted=True), s.Halted("c", 1, 6, scale=0.5))
    _, effects = play(job, s.Planned(group(2, "a"), "regroup"))
    prepare = _prepare(effects)
    assert (prepare.start_round, prepare.scale) == (6, 0.5)


def test_a_second_loss_while_they_halt_that_leaves_a_stage_empty_goes_back() -> None:
    job, _ = play(s.Job("j"), *GROUP, LOSSES[3], s.Halted("a", 1, 5), s.DeviceGone("c", "gone"))
    assert job.phase == "planning"
    job, effects = play(job, s.Planned(whole(2, "a"), "replay"))
    assert not _prepare(effects).live


def test_a_second_loss_in_a_live_preparation_halts_again() -> None:
    three = group(1, "a", "b").model_copy()
    job, _ = play(s.Job("j"), *GROUP, LOSSES[3], s.Halted("a", 1, 5), s.Halted("c", 1, 5))
    job, _ = play(job, s.Planned(group(2, "a"), "regroup"))
    assert (job.phase, job.live, three.generation) == ("preparing", True, 1)
    job, effects = play(job, s.DeviceGone("a", "gone"))
    assert (job.phase, _kinds(effects)) == ("planning", ["Release", "StopFeed", "MakePlan"])


def test_who_does_not_halt_in_time_is_lost_too() -> None:
    job, _ = play(s.Job("j"), *GROUP, LOSSES[3], s.Halted("a", 1, 5))
    job, effects = play(job, s.Late(1, "halting"))
    assert (job.phase, job.live) == ("planning", False)
    assert s.MakePlan(2, frozenset({"b", "c"}), "replay", group(1, "a", "b")) in effects


def test_heavy_rescheduling_plans_anew_and_takes_all_from_the_coordinator() -> None:
    copies = [kept(d, 4, lo, lo + 1) for d in "ab" for lo in (0, 1)]
    heavy = (s.Submitted("train", heavy=True), *RUNNING[1:])
    job, effects = play(s.Job("j"), *heavy, *copies, s.DeviceGone("b", "gone"))
    assert s.MakePlan(2, frozenset({"b"})) in effects
    job, effects = play(job, s.Planned(whole(2, "a")))
    assert dict(_prepare(effects).sources) == {"a": (Source(device="coordinator", lo=0, hi=2),)}
    assert (_prepare(effects).start_round, _prepare(effects).saved) == (4, False)


def test_a_checkpoint_that_fails_is_not_waited_for() -> None:
    job, _ = play(s.Job("j"), *RUNNING, kept("a", 5, 0, 1), s.CheckpointFailed(5))
    assert (job.abandoned, job.durable, job.held) == (5, 0, frozenset())
    job, _ = play(job, s.Checkpointed(10, 1), s.CheckpointFailed(7))
    assert job.abandoned == 5


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
        s.Late(1, "halting"),
        s.Late(0),
        s.Stuck(0, "late"),
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
    assert s.MakePlan(2, frozenset({"b"}), "replay", plan(1, "a", "b")) in effects


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
    job, _ = play(s.Job("j"), s.Submitted("train", saved=7, generation=3), *START[1:3])
    job, effects = play(job, s.Planned(plan(4, "a")))
    assert _prepare(effects).start_round == 7


def test_a_second_submission_of_a_running_job_is_a_bug() -> None:
    job, _ = play(s.Job("j"), *RUNNING)
    with pytest.raises(ImpossibleEventError):
        decide(job, s.Submitted("train"))


EVENTS = [
    s.Imported(10), s.Profiled(("a",)), s.Planned(plan(1, "a", "b")), s.Planned(plan(2, "a")), *ready("a"), *ready("b"),
    *ready("a", 2), s.RoundDone("a", 1, 0), s.RoundDone("b", 1, 0), s.WorkerFinished("a", 1), s.Checkpointed(10, 1),
    s.Checkpointed(3, 1), s.DeviceGone("a", "x"), s.DeviceGone("b", "x"), s.DeviceBack("a"), s.Late(1), s.Late(2),
    s.StopAsked(), s.Broken("x"), s.WorkerMoved("b", "failed", 1, "x"), kept("a", 3, 0, 1), kept("a", 3, 1, 2),
    kept("b", 3, 0, 1), kept("b", 3, 1, 2), s.Halted("a", 1, 2), s.Halted("b", 1, 3, scale=1.0), s.Late(1, "halting"),
    s.CheckpointFailed(3), s.Stuck(1, "x"), s.Stuck(2, "x"),
]  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
def test_any_story_keeps_the_invariants(events: list[s.JobEvent]) -> None:
    job, _ = play(s.Job("j"), s.Submitted("train"))
    for event in events:
        before = job
        job, effects = decide(job, event)
        assert job.saved >= before.saved
        assert job.durable >= job.saved or not job.plan or job.phase in ("planning", *s.ENDED)
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
