"""What happens next to a job: ``decide(job, event) -> (job, effects)``. Pure.

Moves of the phase (``planned`` and ``profiled`` jobs end in ``done`` early):

    new -> profiling -> planning -> preparing -> running -> finishing -> done
                           ^                        |
                           +------- halting <-------+     a device is lost: generation + 1

A loss is answered by the least that does it. While every stage has a survivor, they halt, say how far they are, get
new shares and go on with the state they have: no weights move, no round is lost (``halting``). Otherwise boundaries
move and all go back to the last round whose state can be put together from snapshots, or to the last checkpoint.

From every phase that is active a job goes to ``stopped`` (asked) or ``failed`` (broken). Three answers to an event: it
moves the job; it is late and changes nothing (``LATE`` says why); or it is a bug and raises.
"""

from __future__ import annotations

from dataclasses import replace

from asteroid_coordinator.job.state import (
    ACTIVE,
    ENDED,
    Broken,
    Checkpointed,
    CheckpointFailed,
    DeviceBack,
    DeviceGone,
    Effect,
    Export,
    Feed,
    Halt,
    Halted,
    Import,
    Imported,
    Job,
    JobEvent,
    Kept,
    Late,
    MakePlan,
    Planned,
    Prepare,
    Profile,
    Profiled,
    Release,
    RoundDone,
    Say,
    StopAsked,
    StopFeed,
    Submitted,
    Way,
    WorkerFinished,
    WorkerMoved,
)
from asteroid_core.held import Held, Source, newest, secured, sources
from asteroid_core.ids import COORDINATOR
from asteroid_core.plan import Plan

Answer = tuple[Job, list[Effect]]

LATE: dict[str, str] = {
    "Imported": "the job was stopped or failed while its model was being exported",
    "Profiled": "the job was stopped or failed while devices were measured",
    "Planned": "another device was lost, or the job ended, while the planner worked",
    "WorkerMoved": "a worker of an older generation, or of a job that has ended, still talks",
    "RoundDone": "a report of an older generation arrives after the plan has changed",
    "WorkerFinished": "a report of an older generation arrives after the plan has changed",
    "Halted": "a worker of an older generation answers, or the plan has changed meanwhile",
    "Kept": "a report of an older generation arrives after the plan has changed",
    "CheckpointFailed": "the round has become durable on the devices, or the job ended",
    "Checkpointed": "an older checkpoint was written after a newer one, or after the job ended",
    "DeviceGone": "the device does not take part, or the job has ended",
    "DeviceBack": "the device was never left out",
    "Late": "the workers got ready, or the plan changed, before the deadline",
    "StopAsked": "the job has ended already",
    "Broken": "the job has ended already",
}
"""Events that may arrive when nothing needs to be done, and why."""

_GONE = frozenset({"failed", "exited", "lost"})
_TRAINING = frozenset({"preparing", "running", "halting"})
"""Phases in which workers of the plan are there."""


class ImpossibleEventError(Exception):
    """An event that cannot happen in this phase: a bug, with phase and event named."""


def decide(job: Job, event: JobEvent) -> Answer:
    """Return the job after an event, and what is to be done."""
    if job.phase in ENDED and not isinstance(event, Submitted):
        return job, []
    match event:
        case Submitted():
            return _submitted(job, event)
        case Imported():
            return _imported(job, event)
        case Profiled():
            return _profiled(job, event)
        case Planned():
            return _planned(job, event)
        case WorkerMoved():
            return _worker(job, event)
        case RoundDone():
            return _round(job, event)
        case WorkerFinished():
            return _finished(job, event)
        case Halted():
            return _halted(job, event)
        case Kept():
            return _kept(job, event.held)
        case Checkpointed():
            return _checkpointed(job, event)
        case CheckpointFailed():
            return _abandoned(job, event.rounds)
        case DeviceGone():
            return _gone(job, event.device, event.reason)
        case DeviceBack():
            return replace(job, excluded=tuple(x for x in job.excluded if x[0] != event.device)), []
        case Late():
            return _late(job, event)
        case StopAsked():
            effects: list[Effect] = [StopFeed(), *_release(job), Say("stopped", f"stopped at round {job.saved}")]
            return replace(job, phase="stopped", reason="stopped on request"), effects
        case Broken():
            effects = [StopFeed(), *_release(job), Say("failed", event.what)]
            failed = replace(job, phase="failed", reason=event.what, remedy=event.remedy, exit_code=event.exit_code)
            return failed, effects


def _release(job: Job) -> list[Effect]:
    return [Release(job.plan.devices)] if job.plan else []


def _submitted(job: Job, event: Submitted) -> Answer:
    if job.phase not in ENDED and job.phase != "new":
        raise ImpossibleEventError(f"{event} in phase {job.phase}")
    fresh = Job(
        name=job.name,
        mode=event.mode,
        phase="profiling",
        generation=event.generation,
        completed=event.saved,
        durable=event.saved,
        saved=event.saved,
        start_round=event.saved,
        heavy=event.heavy,
    )
    text = f"resumed at round {event.saved}" if event.saved else "accepted"
    return fresh, [Say("accepted", text), Import()]


def _imported(job: Job, event: Imported) -> Answer:
    if job.phase != "profiling":
        return job, []
    return replace(job, rounds=event.rounds), [Profile()]


def _profiled(job: Job, event: Profiled) -> Answer:
    if job.phase != "profiling":
        return job, []
    says: list[Effect] = [Say("device-left-out", f"{name} is left out: {why}") for name, why in event.failed]
    job = replace(job, excluded=(*job.excluded, *event.failed))
    if job.mode == "profile":
        return replace(job, phase="done", reason="profiled"), [
            *says,
            Say("profiled", f"profiled {len(event.devices)} devices"),
        ]
    return replace(job, phase="planning"), [*says, _make_plan(job)]


def _make_plan(job: Job, way: Way = "full") -> MakePlan:
    old = None if way == "full" else job.plan
    return MakePlan(job.generation + 1, _left_out(job), way, old)


def _left_out(job: Job) -> frozenset[str]:
    return frozenset(name for name, _ in job.excluded)


def _planned(job: Job, event: Planned) -> Answer:
    plan, old = event.plan, job.plan
    if job.phase != "planning" or plan.generation != job.generation + 1 or _left_out(job) & set(plan.devices):
        return job, []
    said = Say("planned", f"plan {plan.generation}: {plan.describe()}")
    if job.mode == "plan":
        return replace(job, plan=plan, generation=plan.generation, phase="done", reason="planned"), [said]
    fresh = replace(
        job,
        phase="preparing",
        plan=plan,
        generation=plan.generation,
        ready=frozenset(),
        reported=(),
        finished=frozenset(),
        abandoned=0,
        # A device that the plan leaves out gets no assignment, and answers nobody.
        held=frozenset(item for item in job.held if item.device in plan.devices),
    )
    if event.way == "regroup":
        return _go_on(fresh, said)
    return _go_back(fresh, old, said)


def _go_on(job: Job, said: Say) -> Answer:
    """New shares: everybody goes on with the state it has, from where the first one is."""
    plan = job.plan
    assert plan is not None
    start = max(item.rounds for item in job.halted)
    scale = next((item.scale for item in job.halted if item.rounds == start), None)
    behind = sorted(item.agent for item in job.halted if item.rounds < start)
    words = f"the survivors get new shares and run round {start} again: no weights move, no round is lost"
    if behind:
        words = f"the survivors get new shares and go on with round {start}; {', '.join(behind)} steps first"
    base = newest(job.held, plan.layers, job.saved)
    job = replace(job, live=True, halted=(), start_round=start, completed=start, held=_of_round(job.held, base))
    prepare = Prepare(plan, start, live=True, saved=start == job.saved, base=base, scale=scale)
    return job, [said, Say("regroup", words, {"round": start}), prepare]


def _go_back(job: Job, old: Plan | None, said: Say) -> Answer:
    """Boundaries move: everybody takes the state of the newest round that is whole."""
    plan = job.plan
    assert plan is not None
    start = newest(job.held, plan.layers, job.saved)
    come = sources(job.held, start, plan, COORDINATOR, COORDINATOR if job.heavy else None)
    effects: list[Effect] = [said]
    if old is not None:
        effects.append(Say("replay", *_moves(job, start, come)))
    base = _of_round(job.held, start)
    job = replace(job, live=False, halted=(), start_round=start, completed=start, durable=start, held=base)
    return job, [*effects, Prepare(plan, start, tuple(come.items()), saved=start == job.saved, base=start)]


def _moves(job: Job, start: int, come: dict[str, tuple[Source, ...]]) -> tuple[str, dict[str, object]]:
    """What goes where, as a sentence and as data."""
    moves = [
        {"from": source.device, "to": device, "lo": source.lo, "hi": source.hi}
        for device, each in come.items()
        for source in each
        if source.device != device
    ]
    lost = job.completed - start
    words = f"back to round {start}" + (f", {lost} rounds are run again" if lost > 0 else "")
    said = [f"layers {m['lo']}-{int(str(m['hi'])) - 1} from {m['from']} to {m['to']}" for m in moves]
    words += f"; {', '.join(said)}" if said else "; no layer moves"
    return words, {"round": start, "again": max(0, lost), "moves": moves}


def _of_round(held: frozenset[Held], rounds: int) -> frozenset[Held]:
    return frozenset(item for item in held if item.rounds == rounds)


def _worker(job: Job, event: WorkerMoved) -> Answer:
    plan = job.plan
    if plan is None or event.agent not in plan.devices or job.phase not in _TRAINING:
        return job, []
    if event.state in _GONE:
        if event.state == "lost" and (event.agent, event.connection) not in job.connections:
            return job, []  # the late will of an older connection, or of a worker that this one has replaced
        return _gone(job, event.agent, event.reason or f"its worker is {event.state}")
    anew = event.state == "starting" and (event.agent, event.connection) not in job.connections
    others = tuple(c for c in job.connections if c[0] != event.agent)
    job = replace(job, connections=(*others, (event.agent, event.connection)))
    if anew and _relied_on(job, event.agent):
        return _gone(job, event.agent, "its worker was started anew")
    if event.generation != job.generation:
        return job, []
    if event.state == "ready" and job.phase == "preparing":
        job = replace(job, ready=job.ready | {event.agent})
        if job.ready == frozenset(plan.devices):
            said = Say("running", f"round {job.start_round} begins on {len(plan.devices)} devices")
            return replace(job, phase="running", live=True, halted=()), [said, Feed(job.start_round)]
    return job, []


def _relied_on(job: Job, agent: str) -> bool:
    """Whether the job counts on something in the memory of this device's worker.

    A device that is back before the broker has missed it has a new worker, and no will has told.
    """
    holds = any(item.device == agent for item in job.held)
    return holds or agent in job.ready or job.phase in ("running", "halting")


def _round(job: Job, event: RoundDone) -> Answer:
    # A worker's first reports may overtake the word of another one that it is ready.
    if job.plan is None or event.generation != job.generation or job.phase not in _TRAINING:
        return job, []
    reported = dict(job.reported)
    reported[event.round] = reported.get(event.round, frozenset()) | {event.agent}
    completed = job.completed
    while reported.get(completed) == frozenset(job.plan.devices):
        del reported[completed]
        completed += 1
    return replace(job, completed=completed, reported=tuple(sorted(reported.items()))), []


def _finished(job: Job, event: WorkerFinished) -> Answer:
    if event.generation != job.generation or job.phase not in ("preparing", "running"):
        return job, []
    return _end(replace(job, finished=job.finished | {event.agent}))


def _kept(job: Job, held: Held) -> Answer:
    plan = job.plan
    if plan is None or held.generation != job.generation or held.device not in plan.devices:
        return job, []
    if job.phase not in _TRAINING or held.device in _left_out(job) or 0 < held.rounds <= job.abandoned:
        return job, []
    job = replace(job, held=job.held | {held})
    if held.rounds < job.durable or (held.generation, held.rounds) <= (job.durable_generation, job.durable):
        return job, []
    return (_durable(job, held.rounds), []) if secured(job.held, job.generation, held.rounds, plan) else (job, [])


def _durable(job: Job, rounds: int) -> Job:
    kept = frozenset(h for h in job.held if (h.generation, h.rounds) >= (job.generation, rounds))
    return replace(job, durable=rounds, durable_generation=job.generation, held=kept)


def _checkpointed(job: Job, event: Checkpointed) -> Answer:
    fresh = event.rounds > job.saved
    job = replace(job, saved=max(job.saved, event.rounds))
    if event.generation == job.generation and event.rounds >= job.durable and job.phase in _TRAINING:
        # Even if a late checkpoint of an older generation holds as much: the workers of this one wait for theirs.
        job = _durable(job, event.rounds)
    if not fresh:
        return job, []
    job, effects = _end(job)
    return job, [Say("checkpoint", f"round {event.rounds} is saved", {"round": event.rounds}), *effects]


def _abandoned(job: Job, rounds: int) -> Answer:
    if rounds <= job.durable:
        return job, []
    return replace(job, abandoned=rounds, held=frozenset(h for h in job.held if h.rounds != rounds)), []


def _end(job: Job) -> Answer:
    if job.plan is None or job.saved < job.rounds or job.finished != frozenset(job.plan.devices):
        return job, []
    return replace(job, phase="done", reason="trained"), [StopFeed(), Export(), *_release(job)]


# Losses


def _gone(job: Job, device: str, reason: str) -> Answer:
    if job.phase not in ACTIVE:
        return job, []
    if job.phase in _TRAINING and job.plan is not None and device not in job.plan.devices:
        return job, []
    said = Say("device-lost", f"{device} is lost: {reason}", {"device": device})
    job = _without(job, device, reason)
    if job.phase == "profiling":
        return job, [said]
    job, effects = _react(job)
    return job, [said, *effects]


def _without(job: Job, device: str, reason: str) -> Job:
    return replace(
        job,
        excluded=(*(x for x in job.excluded if x[0] != device), (device, reason)),
        halted=tuple(h for h in job.halted if h.agent != device),
        held=frozenset(h for h in job.held if h.device != device),
    )


def _react(job: Job) -> Answer:
    """Some devices of the plan are gone: the least that lets the others go on."""
    plan = job.plan
    if plan is None:
        return job, [_make_plan(job)]
    left_out = _left_out(job)
    whole = all(set(stage.devices) - left_out for stage in plan.stages)
    stop: list[Effect] = [StopFeed()] if job.phase in _TRAINING else []
    job = replace(job, ready=frozenset(), finished=frozenset())
    if not (whole and job.live) or job.heavy:
        job = replace(job, phase="planning", live=False, halted=())
        return job, [*stop, _make_plan(job, "full" if job.heavy else "replay")]
    if {item.agent for item in job.halted} >= set(plan.devices) - left_out:
        return replace(job, phase="planning"), [*stop, _make_plan(job, "regroup")]
    if job.phase == "halting":
        return job, []
    return replace(job, phase="halting", halted=()), [*stop, Halt(plan)]


def _halted(job: Job, event: Halted) -> Answer:
    plan = job.plan
    if job.phase != "halting" or plan is None or event.generation != job.generation:
        return job, []
    if event.agent not in plan.devices or event.agent in _left_out(job):
        return job, []
    others = tuple(item for item in job.halted if item.agent != event.agent)
    return _react(replace(job, halted=(*others, event)))


def _late(job: Job, event: Late) -> Answer:
    if event.generation != job.generation or job.plan is None or job.phase != event.phase:
        return job, []
    done = job.ready if job.phase == "preparing" else {item.agent for item in job.halted}
    missing = [d for d in job.plan.devices if d not in done and d not in _left_out(job)]
    what = "did not get ready in time" if job.phase == "preparing" else "did not stop in time"
    effects: list[Effect] = []
    for device in missing:
        job = _without(job, device, f"its worker {what}")
        effects.append(Say("device-late", f"{device} {what}", {"device": device}))
    if not missing:
        return job, []
    job, more = _react(job)
    return job, [*effects, *more]
