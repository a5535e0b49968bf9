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

from asteroid_coordinator.job import losses
from asteroid_coordinator.job.losses import gone, left_out, make_plan, react
from asteroid_coordinator.job.moving import Answer, begin, covers, go_back, go_on, move_on
from asteroid_coordinator.job.state import (
    ENDED,
    GONE,
    TRAINING,
    Broken,
    Checkpointed,
    CheckpointFailed,
    DeviceBack,
    DeviceGone,
    DeviceLeaves,
    Effect,
    Export,
    Feed,
    Halted,
    Import,
    Imported,
    Job,
    JobEvent,
    Kept,
    Late,
    Planned,
    Profile,
    Profiled,
    Proposed,
    Recall,
    Release,
    RoundDone,
    Say,
    StopAsked,
    StopFeed,
    Stuck,
    Submitted,
    TakenOver,
    WorkerFinished,
    WorkerMoved,
)
from asteroid_core.held import secured
from asteroid_core.plan import Plan

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
    "DeviceLeaves": "the device does not take part, or the job has ended",
    "Proposed": "the plan has changed meanwhile",
    "DeviceBack": "the device was never left out",
    "Stuck": "the job has replanned or stopped for another reason meanwhile",
    "Late": "the workers got ready, or the plan changed, before the deadline",
    "StopAsked": "the job has ended already",
    "Broken": "the job has ended already",
}
"""Events that may arrive when nothing needs to be done, and why."""


class ImpossibleEventError(Exception):
    """An event that cannot happen in this phase: a bug, with phase and event named."""


def decide(job: Job, event: JobEvent) -> Answer:
    """Return the job after an event, and what is to be done."""
    if job.phase in ENDED and not isinstance(event, Submitted):
        return job, []
    match event:
        case Submitted():
            return _submitted(job, event)
        case TakenOver():
            return _taken_over(job, event)
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
            return losses.halted(job, event)
        case Kept():
            return _kept(job, event)
        case Checkpointed():
            return _checkpointed(job, event)
        case CheckpointFailed():
            return _abandoned(job, event.rounds)
        case DeviceGone():
            return losses.gone(job, event)
        case Stuck():
            return losses.stuck(job, event)
        case DeviceLeaves():
            return losses.leaves(job, event)
        case Proposed():
            return losses.proposed(job, event)
        case DeviceBack():
            return losses.back(job, event.device)
        case Late():
            return losses.late(job, event)
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


def _taken_over(job: Job, event: TakenOver) -> Answer:
    """Go on with what the workers have if all of them live, otherwise with what the living keep of earlier rounds."""
    if job.phase != "new":
        raise ImpossibleEventError(f"{event} in phase {job.phase}")
    old = event.job
    assert old.plan is not None, "a job without a plan is submitted again"
    missing = sorted(set(old.plan.devices) - left_out(old) - event.alive)
    said = Say("taken-over", f"taken over at round {old.completed}, generation {old.generation}")
    job = replace(
        old,
        saved=max(old.saved, event.saved),
        held=frozenset(h for h in old.held if h.device in event.alive),
        # Others may have been born again meanwhile.
        excluded=tuple(x for x in old.excluded if x[0] in old.plan.devices),
    )
    live = old.phase in ("running", "halting") and not missing
    effects: list[Effect] = [said, Recall()]
    if missing:
        effects.append(Say("note", f"the workers of {', '.join(missing)} have not outlived the coordinator"))
    job, more = react(replace(job, phase="running", live=live))
    return job, [*effects, *more]


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
    return replace(job, phase="planning"), [*says, make_plan(job)]


def _planned(job: Job, event: Planned) -> Answer:
    plan, old = event.plan, job.plan
    if job.phase != "planning" or plan.generation != job.generation + 1 or left_out(job) & set(plan.devices):
        return job, []
    said = Say("planned", f"plan {plan.generation}: {plan.describe()}")
    if job.mode == "plan":
        return replace(job, plan=plan, generation=plan.generation, phase="done", reason="planned"), [said]
    fresh = begin(job, plan)
    if event.way == "regroup":
        answer = go_on(fresh, old, said)
    elif old is not None and covers(old, {item.agent for item in job.halted}):
        answer = move_on(fresh, old, said)
    else:
        answer = go_back(fresh, old, said)
    return _let_go(answer, old)


def _let_go(answer: Answer, old: Plan | None) -> Answer:
    """End the workers that neither train nor serve any more."""
    job, effects = answer
    if old is None or job.plan is None:
        return answer
    free = set(old.devices) - set(job.plan.devices) - job.serving - left_out(job)
    return job, [*effects, Release(tuple(sorted(free)))] if free else effects


def _worker(job: Job, event: WorkerMoved) -> Answer:
    plan = job.plan
    if plan is None or not losses.involved(job, event.agent) or job.phase not in TRAINING:
        return job, []
    if event.state in GONE:
        if event.state == "lost" and (event.agent, event.connection) not in job.connections:
            return job, []  # the late will of an older connection, or of a worker that this one has replaced
        return gone(job, DeviceGone(event.agent, event.reason or f"its worker is {event.state}"))
    anew = event.state == "starting" and (event.agent, event.connection) not in job.connections
    others = tuple(c for c in job.connections if c[0] != event.agent)
    job = replace(job, connections=(*others, (event.agent, event.connection)))
    if anew and _relied_on(job, event.agent):
        return gone(job, DeviceGone(event.agent, "its worker was started anew"))
    if event.generation != job.generation:
        return job, []
    if event.state == "ready" and job.phase == "preparing" and event.agent in plan.devices:
        job = replace(job, ready=job.ready | {event.agent})
        if job.ready == frozenset(plan.devices):
            words = f"round {job.start_round} begins on {len(plan.devices)} devices"
            said = Say("running", words, {"round": job.start_round})
            free: list[Effect] = [Release(tuple(sorted(job.serving)))] if job.serving else []
            held = frozenset(item for item in job.held if item.device not in job.serving)
            job = replace(job, phase="running", live=True, halted=(), serving=frozenset(), held=held)
            job = _secure(job, job.start_round)
            return job, [said, Feed(job.start_round), *free, *losses.hand_over(job)]
    return job, []


def _relied_on(job: Job, agent: str) -> bool:
    """Whether the job counts on something in the memory of this device's worker.

    A device that is back before the broker has missed it has a new worker, and no will has told.
    """
    holds = any(item.device == agent for item in job.held)
    return holds or agent in job.ready or job.phase in ("running", "halting")


def _round(job: Job, event: RoundDone) -> Answer:
    # A worker's first reports may overtake the word of another one that it is ready.
    if job.plan is None or event.generation != job.generation or job.phase not in TRAINING:
        return job, []
    # A worker steps its rounds in order, so its last report speaks for those that were lost on the way.
    reported = {event.agent: event.round + 1} | dict(job.reported)
    reported[event.agent] = max(reported[event.agent], event.round + 1)
    behind = min(reported.get(device, 0) for device in job.plan.devices)
    return replace(job, completed=max(job.completed, behind), reported=tuple(sorted(reported.items()))), []


def _finished(job: Job, event: WorkerFinished) -> Answer:
    if event.generation != job.generation or job.phase not in ("preparing", "running"):
        return job, []
    return _end(replace(job, finished=job.finished | {event.agent}))


def _kept(job: Job, event: Kept) -> Answer:
    plan, held = job.plan, event.held
    if plan is None or event.generation != job.generation or not losses.involved(job, held.device):
        return job, []
    if job.phase not in TRAINING or held.device in left_out(job) or 0 < held.rounds <= job.abandoned:
        return job, []
    return _secure(replace(job, held=job.held | {held}), held.rounds), []


def _secure(job: Job, rounds: int) -> Job:
    """Call a round durable if it is."""
    if job.plan is None or _loading(job, rounds) or rounds < job.durable:
        return job
    newer = (job.generation, rounds) > (job.durable_generation, job.durable)
    return _durable(job, rounds) if newer and secured(job.held, job.generation, rounds, job.plan) else job


def _loading(job: Job, rounds: int) -> bool:
    """Whether a device may still load the start round from snapshots that are forgotten as this one is durable."""
    return job.phase == "preparing" and rounds <= job.start_round


def _durable(job: Job, rounds: int) -> Job:
    kept = frozenset(h for h in job.held if (h.generation, h.rounds) >= (job.generation, rounds))
    return replace(job, durable=rounds, durable_generation=job.generation, held=kept)


def _checkpointed(job: Job, event: Checkpointed) -> Answer:
    fresh = event.rounds > job.saved
    job = replace(job, saved=max(job.saved, event.rounds))
    mine = event.generation == job.generation and event.rounds >= job.durable and job.phase in TRAINING
    if mine and not _loading(job, event.rounds):
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
