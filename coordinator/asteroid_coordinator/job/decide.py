"""What happens next to a job: ``decide(job, event) -> (job, effects)``. Pure.

Moves of the phase (``planned`` and ``profiled`` jobs end in ``done`` early):

    new -> profiling -> planning -> preparing -> running -> finishing -> done
                           ^                        |
                           +---- a device is lost --+     (generation + 1, from the last durable round)

and from every phase that is active to ``stopped`` (asked) or ``failed`` (broken). Three answers to an event: it moves
the job; it is late and changes nothing (``LATE`` says why); or it is a bug and raises.
"""

from __future__ import annotations

from dataclasses import replace

from asteroid_coordinator.job.state import (
    ACTIVE,
    ENDED,
    Broken,
    Checkpointed,
    DeviceBack,
    DeviceGone,
    Effect,
    Export,
    Feed,
    Import,
    Imported,
    Job,
    JobEvent,
    Late,
    MakePlan,
    Planned,
    Prepare,
    Profile,
    Profiled,
    Release,
    RoundDone,
    Say,
    SendProgram,
    StopAsked,
    StopFeed,
    Submitted,
    WorkerFinished,
    WorkerMoved,
)

Answer = tuple[Job, list[Effect]]

LATE: dict[str, str] = {
    "Imported": "the job was stopped or failed while its model was being exported",
    "Profiled": "the job was stopped or failed while devices were measured",
    "Planned": "another device was lost, or the job ended, while the planner worked",
    "WorkerMoved": "a worker of an older generation, or of a job that has ended, still talks",
    "RoundDone": "a report of an older generation arrives after the plan has changed",
    "WorkerFinished": "a report of an older generation arrives after the plan has changed",
    "Checkpointed": "an older checkpoint was written after a newer one, or after the job ended",
    "DeviceGone": "the device does not take part, or the job has ended",
    "DeviceBack": "the device was never left out",
    "Late": "the workers got ready, or the plan changed, before the deadline",
    "StopAsked": "the job has ended already",
    "Broken": "the job has ended already",
}
"""Events that may arrive when nothing needs to be done, and why."""

_GONE = frozenset({"failed", "exited", "lost"})


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
        case Checkpointed():
            return _checkpointed(job, event)
        case DeviceGone():
            return _gone(job, event.device, event.reason)
        case DeviceBack():
            return replace(job, excluded=tuple(x for x in job.excluded if x[0] != event.device)), []
        case Late():
            return _late(job, event)
        case StopAsked():
            effects: list[Effect] = [StopFeed(), *_release(job), Say("stopped", f"stopped at round {job.durable}")]
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
        completed=event.durable,
        durable=event.durable,
        start_round=event.durable,
    )
    text = f"resumed at round {event.durable}" if event.durable else "accepted"
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


def _make_plan(job: Job) -> MakePlan:
    return MakePlan(job.generation + 1, frozenset(name for name, _ in job.excluded))


def _planned(job: Job, event: Planned) -> Answer:
    plan = event.plan
    left_out = {name for name, _ in job.excluded}
    if job.phase != "planning" or plan.generation != job.generation + 1 or left_out & set(plan.devices):
        return job, []
    job = replace(job, plan=plan, generation=plan.generation, ready=frozenset(), reported=(), finished=frozenset())
    said = Say("planned", f"plan {plan.generation}: {plan.describe()}")
    if job.mode == "plan":
        return replace(job, phase="done", reason="planned"), [said]
    job = replace(job, phase="preparing", start_round=job.durable, completed=job.durable)
    return job, [said, Prepare(plan, job.start_round)]


def _worker(job: Job, event: WorkerMoved) -> Answer:
    plan = job.plan
    if plan is None or event.agent not in plan.devices or job.phase not in ("preparing", "running"):
        return job, []
    if event.state in _GONE:
        if event.state == "lost" and (event.agent, event.connection) not in job.connections:
            return job, []  # the late will of an older connection, or of a worker that this one has replaced
        return _gone(job, event.agent, event.reason or f"its worker is {event.state}")
    others = tuple(c for c in job.connections if c[0] != event.agent)
    job = replace(job, connections=(*others, (event.agent, event.connection)))
    if event.generation != job.generation:
        return job, []
    if event.state == "loading" and job.phase == "preparing":
        return job, [SendProgram(event.agent)]
    if event.state == "ready" and job.phase == "preparing":
        job = replace(job, ready=job.ready | {event.agent})
        if job.ready == frozenset(plan.devices):
            said = Say("running", f"round {job.start_round} begins on {len(plan.devices)} devices")
            return replace(job, phase="running"), [said, Feed(job.start_round)]
    return job, []


def _round(job: Job, event: RoundDone) -> Answer:
    if job.plan is None or event.generation != job.generation or job.phase != "running":
        return job, []
    reported = dict(job.reported)
    reported[event.round] = reported.get(event.round, frozenset()) | {event.agent}
    completed = job.completed
    while reported.get(completed) == frozenset(job.plan.devices):
        del reported[completed]
        completed += 1
    return replace(job, completed=completed, reported=tuple(sorted(reported.items()))), []


def _finished(job: Job, event: WorkerFinished) -> Answer:
    if event.generation != job.generation or job.phase != "running":
        return job, []
    return _end(replace(job, finished=job.finished | {event.agent}))


def _checkpointed(job: Job, event: Checkpointed) -> Answer:
    if event.rounds <= job.durable:
        return job, []
    job = replace(job, durable=event.rounds)
    job, effects = _end(job)
    return job, [Say("checkpoint", f"round {event.rounds} is durable", {"round": event.rounds}), *effects]


def _end(job: Job) -> Answer:
    if job.plan is None or job.durable < job.rounds or job.finished != frozenset(job.plan.devices):
        return job, []
    return replace(job, phase="done", reason="trained"), [StopFeed(), Export(), *_release(job)]


def _gone(job: Job, device: str, reason: str) -> Answer:
    if job.phase not in ACTIVE:
        return job, []
    in_use = job.plan.devices if job.plan is not None and job.phase in ("preparing", "running") else None
    if in_use is not None and device not in in_use:
        return job, []
    job = replace(job, excluded=(*(x for x in job.excluded if x[0] != device), (device, reason)))
    said = Say("device-lost", f"{device} is lost: {reason}", {"device": device})
    if job.phase in ("preparing", "running"):
        job = replace(job, phase="planning", ready=frozenset(), finished=frozenset())
        back = (
            f"going back to round {job.durable} of {job.completed}"
            if job.completed > job.durable
            else "no round is lost"
        )
        return job, [said, StopFeed(), Say("replan", back), _make_plan(job)]
    return job, ([said] if job.phase == "profiling" else [said, _make_plan(job)])


def _late(job: Job, event: Late) -> Answer:
    if job.phase != "preparing" or event.generation != job.generation or job.plan is None:
        return job, []
    effects: list[Effect] = []
    for device in job.plan.devices:
        if device not in job.ready:
            job = replace(job, excluded=(*job.excluded, (device, "its worker did not get ready in time")))
            effects.append(Say("device-late", f"{device} did not get ready in time", {"device": device}))
    return replace(job, phase="planning", ready=frozenset()), [*effects, StopFeed(), _make_plan(job)]
