"""What the supervisor does about an event: ``decide(state, event, now) -> (state, effects)``. Pure, no clock, no I/O.

``state.TABLE`` says first whether the event moves the supervisor at all. Births: each connection has an id of its own
in its birth and its will, so a late ``lost`` of an older connection is recognised; when one stands over our fresh birth
on our own status topic, the birth is said again.
"""

from __future__ import annotations

from dataclasses import replace

from asteroid_agent.supervisor.commands import commanded
from asteroid_agent.supervisor.events import (
    Arm,
    ChildExited,
    ChildStarted,
    Connected,
    Disconnected,
    Effect,
    Event,
    Exit,
    Log,
    Measure,
    Message,
    Notify,
    Publish,
    Signalled,
    Subscribe,
    TakenOver,
    TimerFired,
    TimerKind,
)
from asteroid_agent.supervisor.slot import (
    LEAVES,
    Answer,
    assigned,
    birth,
    drain,
    end,
    exited,
    heard,
    kill,
    offline,
    reported,
    say,
    say_again,
    status_line,
)
from asteroid_agent.supervisor.state import (
    BUG,
    CONNECTIONS_KEPT,
    FOREIGN_BIRTHS,
    TABLE,
    Impossible,
    Late,
    Phase,
    State,
)
from asteroid_core.errors import InputError, WireError
from asteroid_core.ids import job_id
from asteroid_core.wire import topics
from asteroid_core.wire.messages import (
    AgentStatus,
    Assignment,
    CoordinatorStatus,
    Report,
    WorkerStatus,
    decode,
    encode,
)

LOG_EVERY = 100
"""Messages that cannot be read are logged the first time and then once in so many."""


def decide(state: State, event: Event, now: float) -> Answer:
    """Return the next state and what to do.

    ``now`` is part of the signature of every ``decide``; nothing here depends on it, since deadlines are timers.

    Raises:
        Impossible: the event cannot happen in this phase: a bug.
    """
    answer = TABLE[state.phase][type(event)]
    if answer is BUG:
        raise Impossible(state.phase, event)
    if isinstance(answer, Late):
        return state, [Log("debug", f"{type(event).__name__} ignored while {state.phase.value}: {answer.reason}")]
    match event:
        case Connected():
            return _connected(state, event)
        case Disconnected():
            warned: list[Effect] = [Log("warning", f"{event.reason} Trying again.")]
            state, said = say(replace(state, connection=""))
            return state, warned + said
        case TakenOver():
            return _taken_over(state, event.reason)
        case Message():
            return _message(state, event)
        case ChildStarted():
            return _started(state, event)
        case ChildExited():
            return _exited(state, event)
        case TimerFired():
            return _timer(state, event)
        case Signalled():
            return _signalled(state, event)


# The connection


def filters(agent: str) -> tuple[str, ...]:
    """What a supervisor subscribes to: commands, its own words, its workers' words, and what its status line needs."""
    return (
        topics.build("agent_command", agent=agent),
        topics.build("agent_status", agent=agent),
        topics.pattern("agent_worker", agent=agent),
        topics.pattern("agent_report", agent=agent),
        topics.pattern("job_assignment", agent=agent),
        topics.build("coordinator_status"),
    )


def _connected(state: State, event: Connected) -> Answer:
    first = state.phase is Phase.INIT
    mine = (*state.mine, event.connection)[-CONNECTIONS_KEPT:]
    phase = Phase.READY if first else state.phase
    state = replace(state, connection=event.connection, mine=mine, phase=phase)
    # First the subscriptions: who sees our birth may send a command at once.
    effects: list[Effect] = [Subscribe(filters(state.agent)), *birth(state)]
    effects.append(Publish(topics.build("agent_info", agent=state.agent), encode(state.info), retain=True))
    state, again = say_again(state, event.session)
    effects += again
    effects.append(Log("info", f"connected to the broker as {state.agent}"))
    line = status_line(state)
    state = replace(state, said=line)
    effects.append(Notify(line, ready=first))
    if first:
        effects.append(Arm(TimerKind.TELEMETRY, 0.0))
    return state, effects


def _taken_over(state: State, reason: str) -> Answer:
    what = reason or f"Another process uses the device name {state.agent} on this broker."
    remedy = f"Stop one of the two agents named {state.agent}, or give one another name with --name."
    return replace(state, phase=Phase.LOST, connection=""), [Exit(2, what, remedy)]


# Messages


def _message(state: State, event: Message) -> Answer:
    found = topics.parse(event.topic)
    if found is None or not event.payload:
        return state, []  # a deleted retained message, or a topic that we did not ask for
    row, fields = found
    try:
        match row.key:
            case "agent_command":
                return commanded(state, event)
            case "agent_status":
                return _own_status(state, decode(AgentStatus, event.payload), event.retain)
            case "agent_worker":
                status = decode(WorkerStatus, event.payload)
                if (status.agent, status.job) != (state.agent, fields["job"]):
                    raise WireError(f"The worker status speaks of {status.agent} and {status.job}.")
                job_id(status.job)
                return heard(state, status, event.retain)
            case "agent_report":
                return reported(state, decode(Report, event.payload))
            case "job_assignment":
                return assigned(state, decode(Assignment, event.payload))
            case "coordinator_status":
                return replace(state, coordinator=decode(CoordinatorStatus, event.payload)), []
            case _:
                return state, []
    except (WireError, InputError) as error:
        state = replace(state, dropped=state.dropped + 1)
        if state.dropped % LOG_EVERY != 1:
            return state, []
        text = f"{event.topic}: {error.what} Messages that could not be read so far: {state.dropped}."
        return state, [Log("warning", text)]


def _own_status(state: State, status: AgentStatus, retain: bool) -> Answer:
    if status.state == "lost":
        # Whatever connection it speaks of: we are here.
        return state, birth(state)
    if status.connection in state.mine or retain or status.state == "offline":
        return state, []
    births = state.foreign_births + 1
    if births < FOREIGN_BIRTHS:
        text = f"another process said {status.state} under the name {state.agent}"
        return replace(state, foreign_births=births), [Log("warning", text), *birth(state)]
    return _taken_over(state, "")


# Processes, timers, the end


def _started(state: State, event: ChildStarted) -> Answer:
    worker = state.worker
    if worker is None or worker.number != event.number:
        raise Impossible(state.phase, event)
    text = f"worker {worker.launch.describe()} started as process {event.pid}"
    return replace(state, worker=replace(worker, pid=event.pid)), [Log("info", text)]


def _exited(state: State, event: ChildExited) -> Answer:
    worker = state.worker
    if worker is None or worker.number != event.number:
        raise Impossible(state.phase, event)
    draining = state.phase is Phase.DRAINING
    state, effects = exited(state, worker, event)
    if draining:
        state, finished = offline(state)
        return state, effects + finished
    state, said = say(state)
    return state, effects + said


def _timer(state: State, event: TimerFired) -> Answer:
    if event.kind is TimerKind.TELEMETRY:
        again = Arm(TimerKind.TELEMETRY, state.telemetry_s)
        return state, [Measure(), again] if state.connection else [again]
    worker = state.worker
    if worker is None or worker.number != event.number:
        return state, [Log("debug", f"timer {event.kind.value} is late: worker {event.number} has ended")]
    if event.kind is TimerKind.LEAVE:
        return end(state, LEAVES)
    if event.kind is TimerKind.KILL:
        text = f"worker of job {worker.launch.job} did not end within {state.grace_s:g} s and is killed"
        state, effects = kill(state)
        return state, [Log("warning", text), *effects]
    text = f"process {worker.pid} of job {worker.launch.job} outlives SIGKILL: it hangs in the kernel"
    if state.phase is Phase.DRAINING:
        state, effects = offline(state)
        return state, [Log("error", text), *effects]
    return state, [Log("error", text)]


def _signalled(state: State, event: Signalled) -> Answer:
    if state.phase is Phase.INIT:
        return replace(state, phase=Phase.OFFLINE), [Exit()]
    if state.phase is Phase.DRAINING:  # asked twice: somebody is in a hurry
        return kill(state)
    return drain(state, f"{event.name} received")
