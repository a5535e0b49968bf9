"""The supervisor's decisions: births, wills, commands, workers, the end. No process, no broker, no clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asteroid_agent.supervisor import events as ev
from asteroid_agent.supervisor.decide import decide
from asteroid_agent.supervisor.state import BUG, TABLE, Impossible, Phase, State
from asteroid_core import PROTOCOL
from asteroid_core.spec import DataSpec
from asteroid_core.wire.messages import (
    AgentInfo,
    AgentStatus,
    Command,
    CoordinatorStatus,
    Reply,
    WorkerStatus,
    decode,
    encode,
)
from asteroid_core.wire.topics import build

NEW = State("pi", AgentInfo(agent="pi", cores=2, memory_mb=2000, budget_mb=1000))
CONNECTED = ev.Connected("c1")


def play(*events: ev.Event, state: State = NEW) -> tuple[State, list[ev.Effect]]:
    """Apply events; returns the effects of the last one."""
    effects: list[ev.Effect] = []
    for event in events:
        state, effects = decide(state, event, 0.0)
    return state, effects


def command(verb: str, identity: str = "1", **fields: Any) -> ev.Message:
    """A command of the coordinator's session s1."""
    raw = {"id": identity, "verb": verb, "job": "j", "session": "s1", "generation": 1, **fields}
    return ev.Message(build("agent_command", agent="pi"), encode(Command.model_validate(raw)))


def worker(state: str, connection: str = "w1", reason: str = "", retain: bool = False, job: str = "j") -> ev.Message:
    """A word on the topic of a worker."""
    raw = {"agent": "pi", "job": job, "state": state, "connection": connection, "generation": 1, "session": "s1",
           "reason": reason}  # fmt: skip
    return ev.Message(build("agent_worker", agent="pi", job=job), encode(WorkerStatus.model_validate(raw)), retain)


def replies(effects: list[ev.Effect]) -> list[Reply]:
    """Answers among the effects."""
    topic = build("agent_reply", agent="pi")
    return [decode(Reply, e.payload) for e in effects if isinstance(e, ev.Publish) and e.topic == topic]


def said(effects: list[ev.Effect]) -> list[WorkerStatus]:
    """Words about workers among the effects."""
    return [
        decode(WorkerStatus, e.payload)
        for e in effects
        if isinstance(e, ev.Publish) and "/worker/" in e.topic and e.payload
    ]


def births(effects: list[ev.Effect]) -> list[AgentStatus]:
    """Births among the effects."""
    topic = build("agent_status", agent="pi")
    return [decode(AgentStatus, e.payload) for e in effects if isinstance(e, ev.Publish) and e.topic == topic]


def _of(effects: list[ev.Effect], kind: type) -> list[Any]:
    return [e for e in effects if isinstance(e, kind)]


def test_it_subscribes_before_it_is_born() -> None:
    state, effects = play(CONNECTED)
    assert state.phase is Phase.READY
    kinds = [type(e) for e in effects if isinstance(e, (ev.Subscribe, ev.Publish))]
    assert kinds[0] is ev.Subscribe
    assert [(b.state, b.connection) for b in births(effects)] == [("ready", "c1")]
    assert _of(effects, ev.Notify)[0].ready
    assert ev.Arm(ev.TimerKind.TELEMETRY, 0.0) in effects


def test_a_reconnection_has_an_id_of_its_own_and_a_late_will_is_overruled() -> None:
    state, effects = play(CONNECTED, ev.Disconnected("cut."), ev.Connected("c2"))
    assert births(effects)[0].connection == "c2"
    will = encode(AgentStatus(agent="pi", state="lost", connection="c1"))
    state, effects = decide(state, ev.Message(build("agent_status", agent="pi"), will), 0.0)
    assert [(b.state, b.connection) for b in births(effects)] == [("ready", "c2")]


def test_another_agent_of_the_same_name_ends_this_one_with_a_sentence() -> None:
    topic = build("agent_status", agent="pi")
    foreign = [ev.Message(topic, encode(AgentStatus(agent="pi", state="ready", connection=f"x{i}"))) for i in range(3)]
    state, effects = play(CONNECTED, *foreign)
    (end,) = _of(effects, ev.Exit)
    assert (state.phase, end.code) == (Phase.LOST, 2)
    assert "--name" in end.remedy


def test_a_prepare_starts_one_worker_and_a_second_one_keeps_it() -> None:
    state, effects = play(CONNECTED, command("prepare"))
    assert [e.launch.job for e in _of(effects, ev.Spawn)] == ["j"]
    assert replies(effects)[0].ok
    assert births(effects)[0].state == "training"
    state, effects = play(command("prepare", "2", generation=2), state=state)
    assert not _of(effects, ev.Spawn)
    assert replies(effects)[0].ok
    _, effects = play(command("prepare", "3", job="other"), state=state)
    assert not replies(effects)[0].ok
    assert "one worker at a time" in replies(effects)[0].reason


def test_a_command_that_comes_twice_acts_once() -> None:
    state, first = play(CONNECTED, command("prepare"))
    again, second = play(command("prepare"), state=state)
    assert again == state
    assert replies(second) == replies(first)
    assert not _of(second, ev.Spawn)


def test_a_restarted_coordinator_replaces_the_worker() -> None:
    state, effects = play(CONNECTED, command("prepare"), command("prepare", "2", session="s2"))
    assert _of(effects, ev.Kill) == [ev.Kill(1, hard=False)]
    state, effects = play(ev.ChildExited(1, code=0), state=state)
    assert [e.launch.session for e in _of(effects, ev.Spawn)] == ["s2"]
    assert not said(effects)  # the new worker speaks for itself; "exited" in between would look like its end


@pytest.mark.parametrize(
    ("event", "state_", "reason"),
    [
        (ev.ChildExited(1, code=0), "exited", "exit code 0"),
        (ev.ChildExited(1, code=3), "failed", "exit code 3"),
        (ev.ChildExited(1, signal="SIGKILL"), "failed", "killed by SIGKILL"),
        (ev.ChildExited(1, signal="SIGKILL", oom="yes"), "failed", "out of memory"),
        (ev.ChildExited(1, error="no such file"), "failed", "could not be started: no such file"),
    ],
)
def test_the_last_word_says_why_a_worker_is_gone(event: ev.ChildExited, state_: str, reason: str) -> None:
    state, effects = play(CONNECTED, command("prepare"), event)
    (word,) = said(effects)
    assert (word.state, word.reason, word.session) == (state_, reason, "s1")
    assert state.worker is None
    assert births(effects)[0].state == "ready"


def test_a_workers_own_sentence_is_better_than_its_exit_code() -> None:
    _, effects = play(
        CONNECTED, command("prepare"), worker("failed", reason="A foreign operator."), ev.ChildExited(1, code=2)
    )
    assert said(effects)[0].reason == "A foreign operator."


def test_a_dead_workers_late_will_does_not_have_the_last_word() -> None:
    state, _ = play(CONNECTED, command("prepare"), worker("running"), ev.ChildExited(1, signal="SIGKILL"))
    _, effects = play(worker("lost"), state=state)
    assert said(effects)[0].reason == "killed by SIGKILL"


def test_a_stop_asks_then_kills() -> None:
    state, effects = play(CONNECTED, command("prepare"), command("stop", "2"))
    assert ev.Kill(1, hard=False) in effects
    assert _of(effects, ev.Arm)[0].kind is ev.TimerKind.KILL
    _, effects = play(ev.TimerFired(ev.TimerKind.KILL, 1), state=state)
    assert ev.Kill(1, hard=True) in effects


def test_a_stop_of_an_older_generation_does_not_end_a_newer_worker() -> None:
    _, effects = play(CONNECTED, command("prepare", generation=3), command("stop", "2", generation=2))
    assert not _of(effects, ev.Kill)
    assert replies(effects)[0].ok
    _, effects = play(CONNECTED, command("prepare", generation=3), command("stop", "2", generation=3))
    assert _of(effects, ev.Kill)


def test_leaving_ends_the_worker_first() -> None:
    state, effects = play(CONNECTED, command("prepare"), ev.Signalled("SIGTERM"))
    assert state.phase is Phase.DRAINING
    assert births(effects)[0].state == "draining"
    assert not _of(effects, ev.Exit)
    state, effects = play(ev.ChildExited(1, signal="SIGTERM"), state=state)
    assert births(effects)[-1].state == "offline"
    assert _of(effects, ev.Exit) == [ev.Exit()]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (command("profile", model="bad/level"), "bad/level"),
        (command("inspect"), "names no data"),
        (command("prepare", job="No Job"), "No Job"),
        (ev.Message(build("agent_command", agent="pi"), b'{"id": "9", "verb": "dance"}'), "speaks protocol"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(event: ev.Message, says: str) -> None:
    _, effects = play(CONNECTED, event)
    (reply,) = replies(effects)
    assert not reply.ok
    assert says in reply.reason
    assert not _of(effects, ev.Spawn)


def test_a_coordinator_of_another_protocol_is_not_obeyed() -> None:
    status = CoordinatorStatus(state="online", connection="x", session="s1", protocol=PROTOCOL + 1)
    event = ev.Message(build("coordinator_status"), encode(status))
    _, effects = play(CONNECTED, event, command("prepare"))
    assert "upgrade the older of the two" in replies(effects)[0].reason


def test_a_retained_command_is_ignored() -> None:
    topic, payload = command("prepare").topic, command("prepare").payload
    _, effects = play(CONNECTED, ev.Message(topic, payload, retain=True))
    assert not _of(effects, ev.Spawn)


def test_an_inspection_is_told_what_to_look_at() -> None:
    data = DataSpec(source="digits")
    state, effects = play(CONNECTED, command("inspect", data=data, dtype="float32", seed=3))
    (spawn,) = _of(effects, ev.Spawn)
    assert (spawn.launch.mode, spawn.launch.data, spawn.launch.seed) == ("inspect", data, 3)
    assert state.phase is Phase.READY


EVENTS: list[ev.Event] = [
    CONNECTED, ev.Connected("c2", True), ev.Disconnected("x."), ev.Signalled("SIGTERM"), ev.TakenOver("x"),
    command("prepare"), command("prepare", "2", session="s2"), command("profile", "3", model="m"), command("stop", "4"),
    command("leave", "5"), worker("running"), worker("failed", reason="x"), worker("lost"), worker("done", retain=True),
    ev.TimerFired(ev.TimerKind.TELEMETRY), ev.TimerFired(ev.TimerKind.KILL, 1), ev.TimerFired(ev.TimerKind.GIVE_UP, 1),
    ev.Message("asteroid/v1/agents/pi/command", b"\xff"), ev.Message("asteroid/v1/agents/pi/worker/j", b"{}"),
    ev.Message("elsewhere", b"x"), ev.Message("asteroid/v1/agents/pi/status", b""),
]  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS), max_size=25))
def test_any_story_keeps_the_invariants(story: list[ev.Event]) -> None:
    state, alive = NEW, 0
    for event in [CONNECTED, *story]:
        if TABLE[state.phase][type(event)] is BUG:
            continue
        state, effects = decide(state, event, 0.0)
        alive += len(_of(effects, ev.Spawn))
        assert alive <= 1 or state.phase in (Phase.OFFLINE, Phase.LOST)
        assert (state.worker is not None) == (alive == 1) or state.phase in (Phase.OFFLINE, Phase.LOST)
        for effect in effects:
            if isinstance(effect, ev.Publish) and effect.payload:
                json.loads(effect.payload)
                assert state.connection or effect.topic.endswith("/reply")  # what carries our id needs one


def test_a_child_that_was_never_started_is_a_bug() -> None:
    with pytest.raises(Impossible):
        play(CONNECTED, ev.ChildExited(5, code=0))
