"""What the supervisor does about commands of the coordinator: each gets an answer, a sentence if refused. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from asteroid_agent.supervisor.events import Effect, Launch, Log, Message, Publish
from asteroid_agent.supervisor.slot import Answer, drain, end, launch, say
from asteroid_agent.supervisor.state import ANSWERS_KEPT, Phase, State
from asteroid_agent.worker.config import Mode
from asteroid_core import PROTOCOL
from asteroid_core.errors import InputError, WireError
from asteroid_core.ids import job_id
from asteroid_core.wire import topics
from asteroid_core.wire.messages import Command, Reply, decode, encode

_MODES: Mapping[str, Mode] = {"prepare": "train", "profile": "profile", "inspect": "inspect"}
LONGEST_ID = 200
"""A command's id is copied into the answer, so it may not be a way to make us say long things."""


def commanded(state: State, event: Message) -> Answer:
    """Deal with a message on the command topic.

    Raises:
        WireError: it cannot be read, not even its id, so that nobody can be answered.
    """
    if event.retain:
        text = f"a retained message on {event.topic} is ignored: it would act again at each restart"
        return state, [Log("warning", text)]
    try:
        command = decode(Command, event.payload)
    except WireError as error:
        identity = _readable_id(event.payload)
        if identity is None:
            raise
        return _answer(state, identity, False, f"{error.what} This agent speaks protocol {PROTOCOL}.")
    if len(command.id) > LONGEST_ID:
        raise WireError(f"A command id of {len(command.id)} characters is too long.")
    for reply in state.answered:
        if reply.id == command.id:
            return state, [_reply(state, reply)]  # delivered twice: it acts once, and gets the same answer
    refusal = _refusal(state, command)
    if refusal:
        return _answer(state, command.id, False, refusal)
    match command.verb:
        case "prepare" | "profile" | "inspect":
            return _wanted(state, command)
        case "stop":
            return _stop(state, command)
        case "leave":
            state, answered = _answer(state, command.id, True, "")
            state, effects = drain(state, "asked to leave")
            return state, answered + effects


def _refusal(state: State, command: Command) -> str:
    """Why a command cannot be taken whatever it asks; empty if it can."""
    coordinator = state.coordinator
    if coordinator is not None and coordinator.state == "online":
        if coordinator.protocol != PROTOCOL:
            return (
                f"The coordinator speaks protocol {coordinator.protocol}, {state.agent} speaks {PROTOCOL}: "
                "upgrade the older of the two."
            )
        if command.session and coordinator.session and command.session != coordinator.session:
            return "The command comes from an earlier start of the coordinator."
    if command.verb == "leave":
        return ""
    try:
        job_id(command.job)
        if command.verb == "inspect" and command.data is None:
            return "The command names no data."
        if command.verb == "profile":
            topics.build("agent_profile", agent=state.agent, model=command.model)
    except InputError as error:
        return str(error)
    if command.verb != "stop" and state.phase is Phase.DRAINING:
        return f"{state.agent} is leaving."
    return ""


def _wanted(state: State, command: Command) -> Answer:
    wanted = Launch(
        command.job,
        _MODES[command.verb],
        command.run or command.session,
        command.generation,
        command.model if command.verb == "profile" else "",
        command.data,
        command.dtype,
        command.seed,
    )
    worker = state.worker
    if worker is None:
        state, answered = _answer(state, command.id, True, "")
        state, effects = launch(state, wanted)
        state, said = say(state)
        return state, answered + effects + said
    running = worker.launch
    same_start = running.session == wanted.session
    if not worker.ending and same_start:
        if (running.job, running.mode, running.model) == (wanted.job, wanted.mode, wanted.model):
            return _answer(state, command.id, True, "its worker runs already")
        only = "one worker at a time"
        return _answer(state, command.id, False, f"{state.agent} is {running.describe()}, {only}: stop that first.")
    waiting = state.waiting
    if waiting is not None and waiting.job != wanted.job and waiting.session == wanted.session:
        return _answer(state, command.id, False, f"{state.agent} is about to begin {waiting.describe()}.")
    state, answered = _answer(replace(state, waiting=wanted), command.id, True, "")
    state, effects = end(state, "stopped" if same_start else "replaced: the job was begun anew")
    return state, answered + effects


def _stop(state: State, command: Command) -> Answer:
    worker, waiting = state.worker, state.waiting
    if waiting is not None and waiting.job == command.job and waiting.generation <= command.generation:
        state = replace(state, waiting=None)
    if worker is None or worker.launch.job != command.job:
        return _answer(state, command.id, True, "no worker of this job runs")
    heard = worker.heard.generation if worker.heard is not None else 0
    ours = worker.launch.mode == "train" and worker.launch.session == (command.run or command.session)
    if ours and command.generation < max(worker.launch.generation, heard):
        # A broker may bring a stop late, when the device takes part again.
        return _answer(state, command.id, True, "its worker is of a newer generation")
    state, answered = _answer(state, command.id, True, "")
    state, effects = end(state, "stopped")
    return state, answered + effects


def _answer(state: State, identity: str, ok: bool, reason: str) -> Answer:
    reply = Reply(id=identity, agent=state.agent, ok=ok, reason=reason)
    effects: list[Effect] = [_reply(state, reply)]
    if not ok:
        effects.append(Log("warning", f"command {identity} refused: {reason}"))
    return replace(state, answered=(*state.answered, reply)[-ANSWERS_KEPT:]), effects


def _reply(state: State, reply: Reply) -> Publish:
    return Publish(topics.build("agent_reply", agent=state.agent), encode(reply))


def _readable_id(payload: bytes) -> str | None:
    """Id of a command that we cannot read otherwise, so that a newer coordinator gets an answer."""
    try:
        raw = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    identity = raw.get("id") if isinstance(raw, dict) else None
    return identity if isinstance(identity, str) and 0 < len(identity) <= LONGEST_ID else None
