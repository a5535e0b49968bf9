"""The one place for a worker process on a device: start, replace, end, and the last word about it. Pure.

The worker has a connection and a last will of its own on the same retained topic, so three voices write there: the
worker, its will (by the broker), and the supervisor once the process is gone. The supervisor's word about a dead
worker, and a live worker's word over the will of an older connection, win in the end: whoever is overwritten says it
again, once for each message that did it.
"""

from __future__ import annotations

from dataclasses import replace

from asteroid_agent.supervisor.events import (
    Arm,
    ChildExited,
    Effect,
    Exit,
    Kill,
    Launch,
    Log,
    Notify,
    Publish,
    Spawn,
    TimerKind,
)
from asteroid_agent.supervisor.state import WORDS_KEPT, Phase, State, Word, Worker
from asteroid_core.wire import topics
from asteroid_core.wire.messages import NO_STAGE, AgentStatus, Assignment, Report, WorkerStatus, encode

GIVE_UP_S = 10.0
"""A process that outlives SIGKILL this long hangs in the kernel; nothing more can be done about it."""
LEAVES = "the device leaves"
"""Why a worker is ended."""
FINAL = frozenset({"exited", "failed", "done"})

Answer = tuple[State, list[Effect]]


def birth(state: State, reason: str = "") -> list[Effect]:
    """Say the present phase, retained, with the present connection's id; nothing while there is no connection."""
    if not state.connection:
        return []
    status = AgentStatus.model_validate(
        {"agent": state.agent, "state": state.phase.value, "connection": state.connection, "reason": reason}
    )
    return [Publish(topics.build("agent_status", agent=state.agent), encode(status), retain=True)]


def status_line(state: State) -> str:
    """One line about what goes on, for ``systemctl status``."""
    worker = state.worker
    if state.phase in (Phase.DRAINING, Phase.OFFLINE, Phase.LOST):
        text = state.phase.value
    elif worker is None:
        text = f"{state.phase.value}, lends {state.info.cores:g} cores and {state.info.budget_mb} MB"
    elif worker.launch.mode != "train":
        text = worker.launch.describe()
    else:
        text = f"stage {worker.stage} of job {worker.launch.job}" if worker.stage else f"job {worker.launch.job}"
        if worker.round is not None:
            text += f", round {worker.round}"
        elif worker.heard is not None:
            text += f", {worker.heard.state}"
    return text if state.connection else f"{text}; no connection to the broker"


def say(state: State) -> Answer:
    """Tell the service manager if the status line has changed."""
    line = status_line(state)
    if line == state.said:
        return state, []
    return replace(state, said=line), [Notify(line)]


# Start and end


def launch(state: State, wanted: Launch) -> Answer:
    """Start a worker in the free place."""
    number = state.spawned + 1
    trains = wanted.mode == "train"
    words = tuple(word for word in state.words if word.job != wanted.job)
    state = replace(state, spawned=number, worker=Worker(number, wanted), words=words)
    effects: list[Effect] = [Spawn(number, wanted)]
    if trains and state.phase is Phase.READY:
        state = replace(state, phase=Phase.TRAINING)
        effects += birth(state)
    return state, effects


def end(state: State, why: str) -> Answer:
    """Ask the worker to end; it is killed after the grace period."""
    worker = state.worker
    if worker is None or worker.stopping:
        return state, []
    state = replace(state, worker=replace(worker, stopping=why))
    return state, [Kill(worker.number, hard=False), Arm(TimerKind.KILL, state.grace_s, worker.number)]


def kill(state: State) -> Answer:
    """End the worker at once."""
    worker = state.worker
    if worker is None:
        return state, []
    state = replace(state, worker=replace(worker, stopping=worker.stopping or "stopped"))
    return state, [Kill(worker.number, hard=True), Arm(TimerKind.GIVE_UP, GIVE_UP_S, worker.number)]


def exited(state: State, worker: Worker, event: ChildExited) -> Answer:
    """Say the last word about a worker whose process is gone, and start the one that waits for its place."""
    word = last_word(worker, event)
    state = replace(state, worker=None)
    effects: list[Effect] = [
        Log("info" if word.state == "exited" else "warning", f"worker of job {word.job} {word.state}: {word.reason}")
    ]
    waiting = state.waiting
    if waiting is None or waiting.job != word.job:
        # A worker that takes the same topic over speaks soon; "exited" in between would look like its end.
        state, said = remember(state, word)
        effects += said
    if state.phase is Phase.TRAINING and (waiting is None or waiting.mode != "train"):
        state = replace(state, phase=Phase.READY)
        effects += birth(state)
    if waiting is not None and state.phase is not Phase.DRAINING:
        state, started = launch(replace(state, waiting=None), waiting)
        effects += started
    return state, effects


def last_word(worker: Worker, event: ChildExited) -> Word:
    """Return what is said about a worker that has ended."""
    heard = worker.heard
    job, session = worker.launch.job, worker.launch.session
    dead = heard.connection if heard is not None else ""
    generation = max(worker.launch.generation, heard.generation if heard is not None else 0)
    if heard is not None and heard.state == "failed" and heard.reason:
        return Word(job, "failed", generation, heard.reason, dead, session)
    if worker.stopping:
        return Word(job, "exited", generation, worker.stopping, dead, session)
    if event.error:
        return Word(job, "failed", generation, f"could not be started: {event.error}", dead, session)
    if event.code == 0:
        reason = "done" if heard is not None and heard.state == "done" else "exit code 0"
        return Word(job, "exited", generation, reason, dead, session)
    if event.code is not None:
        return Word(job, "failed", generation, f"exit code {event.code}", dead, session, final=False)
    reason = {
        "no": f"killed by {event.signal}",
        "perhaps": f"killed by {event.signal} (out of memory?)",
        "yes": "out of memory",
    }[event.oom]
    return Word(job, "failed", generation, reason, dead, session, final=False)


def remember(state: State, word: Word) -> Answer:
    """Publish a last word and keep it; the oldest ones are forgotten, here and on the broker."""
    word = replace(word, said=bool(state.connection))
    words = (*(w for w in state.words if w.job != word.job), word)
    gone = words[:-WORDS_KEPT]
    state = replace(state, words=words[-WORDS_KEPT:])
    effects = publish_word(state, word)
    if state.connection:
        effects += [Publish(_topic(state, old.job), b"", retain=True) for old in gone]
    return state, effects


def say_again(state: State, session: bool) -> Answer:
    """After a reconnect: publish the words that the broker cannot have."""
    effects: list[Effect] = []
    for word in state.words:
        if not (session and word.said):
            effects += publish_word(state, word)
    return replace(state, words=tuple(replace(word, said=True) for word in state.words)), effects


def publish_word(state: State, word: Word) -> list[Effect]:
    """Publish a last word under our own connection's id, so that the worker's late will does not count against it."""
    if not state.connection:
        return []
    status = WorkerStatus(
        agent=state.agent,
        job=word.job,
        state=word.state,
        connection=state.connection,
        generation=word.generation,
        session=word.session,
        reason=word.reason,
    )
    return [Publish(_topic(state, word.job), encode(status), retain=True)]


# The end


def drain(state: State, reason: str) -> Answer:
    """Leave: hand a stage over if a coordinator is there to see to it, end the worker, say offline and exit."""
    if state.phase is Phase.DRAINING:
        return state, []
    state = replace(state, phase=Phase.DRAINING, waiting=None)
    effects: list[Effect] = [
        Log("info", f"leaving: {reason}"),
        Notify("draining", stopping=True),
        *birth(state, reason),
    ]
    if state.worker is None:
        state, finished = offline(state)
        return state, effects + finished
    there = state.coordinator is not None and state.coordinator.state == "online" and state.connection
    if there and state.worker.launch.mode == "train" and not state.worker.stopping:
        # The coordinator sees that we are draining, plans without us, and stops the worker once nobody needs it.
        return state, [*effects, Arm(TimerKind.LEAVE, state.leave_s, state.worker.number)]
    state, ended = end(state, LEAVES)
    return state, effects + ended


def offline(state: State) -> Answer:
    """Say offline and exit."""
    state = replace(state, phase=Phase.OFFLINE)
    return state, [*birth(state), Exit()]


# What comes in on the worker's topics


def heard(state: State, status: WorkerStatus, retain: bool) -> Answer:
    """Deal with a message on the topic of one of our workers."""
    if status.connection in state.mine:
        return state, []  # our own word comes back
    worker = state.worker
    if worker is not None and worker.launch.job == status.job:
        return _heard_alive(state, worker, status, retain)
    word = next((w for w in state.words if w.job == status.job), None)
    if word is None:
        return _leftover(state, status)
    if status.state in FINAL and status.state != "failed":
        return state, []  # says the same as we do, or is the word of our own life before a restart
    if status.state == "failed" and status.reason and not word.final and word.dead in ("", status.connection):
        # The process was gone before its own, better sentence came.
        word = replace(word, reason=status.reason, dead=status.connection, final=True)
        words = tuple(word if w.job == word.job else w for w in state.words)
        state = replace(state, words=words)
    elif status.state == "failed" and retain:
        return state, []  # from before a restart
    return state, publish_word(state, word)


def _heard_alive(state: State, worker: Worker, status: WorkerStatus, retain: bool) -> Answer:
    if status.state == "lost":
        if worker.heard is None or worker.heard.connection == status.connection:
            return state, []  # its connection broke; it says more when it is back
        # The late will of an older connection stands over the live worker's word.
        return state, [Publish(_topic(state, status.job), encode(worker.heard), retain=True)]
    if retain and worker.heard is None and status.state in FINAL:
        return state, []  # the word about its predecessor
    return say(replace(state, worker=replace(worker, heard=status)))


def _leftover(state: State, status: WorkerStatus) -> Answer:
    """A worker of an earlier life of this agent: it ended with that life, whatever its topic says."""
    if status.state in FINAL:
        word = Word(
            status.job, status.state, status.generation, status.reason, status.connection, status.session, said=True
        )
        words = (*state.words, word)
        gone = words[:-WORDS_KEPT]
        state = replace(state, words=words[-WORDS_KEPT:])
        return state, [Publish(_topic(state, old.job), b"", retain=True) for old in gone]
    word = Word(status.job, "failed", status.generation, "the agent was restarted", status.connection, status.session)
    return remember(state, word)


def assigned(state: State, assignment: Assignment) -> Answer:
    """Note the worker's stage for the status line."""
    worker = state.worker
    if worker is None or worker.launch.job != assignment.job or worker.launch.session != assignment.session:
        return state, []
    stage = f"{assignment.stage + 1}/{len(assignment.plan.stages)}" if assignment.stage != NO_STAGE else ""
    return say(replace(state, worker=replace(worker, stage=stage, round=None)))


def reported(state: State, report: Report) -> Answer:
    """Note the worker's round for the status line."""
    worker = state.worker
    if worker is None or worker.launch.job != report.job or report.kind != "round":
        return state, []
    return say(replace(state, worker=replace(worker, round=report.round)))


def _topic(state: State, job: str) -> str:
    return topics.build("agent_worker", agent=state.agent, job=job)
