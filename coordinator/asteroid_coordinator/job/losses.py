"""What happens to a running job when devices are lost, leave or come, or a better plan is found. Pure."""

from __future__ import annotations

from dataclasses import replace

from asteroid_coordinator.job import moving
from asteroid_coordinator.job.moving import Answer
from asteroid_coordinator.job.state import (
    ACTIVE,
    TRAINING,
    Consider,
    DeviceGone,
    DeviceLeaves,
    Effect,
    Halt,
    Halted,
    Job,
    Late,
    MakePlan,
    Proposed,
    Release,
    Say,
    StopFeed,
    Stuck,
    Way,
)


def make_plan(job: Job, way: Way = "full") -> MakePlan:
    """Ask for the plan of the next generation."""
    old = None if way == "full" else job.plan
    return MakePlan(job.generation + 1, left_out(job) | leaving(job), way, old)


def left_out(job: Job) -> frozenset[str]:
    """Devices that no plan may have."""
    return frozenset(name for name, _ in job.excluded)


def leaving(job: Job) -> frozenset[str]:
    """Devices that the next plan does not have."""
    return frozenset(name for name, _ in job.leaving)


def involved(job: Job, device: str) -> bool:
    """Whether a device is in the plan in force, or gives its state to those that are."""
    return device in job.serving or (job.plan is not None and device in job.plan.devices)


def gone(job: Job, event: DeviceGone) -> Answer:
    """A device is lost."""
    device = event.device
    if job.phase not in ACTIVE:
        return job, []
    if job.phase in TRAINING and job.plan is not None and not involved(job, device):
        return job, []
    if job.phase == "halting" and device in left_out(job):
        return job, []  # its will, its exit and the word of its supervisor say the same
    found = {"source": event.source, "worst_s": event.worst_s} if event.source else {}
    said = Say("device-lost", f"{device} is lost: {event.reason}", {"device": device, **found})
    job = without(job, device, event.reason)
    if job.phase == "profiling":
        return job, [said]
    ends = _end_of(job, device)
    job, effects = react(job)
    return job, [said, *ends, *effects]


def _end_of(job: Job, device: str) -> list[Effect]:
    """A lost worker may hang only, or wake up again: its supervisor is to end it, so that the device is free."""
    return [Release((device,))] if job.plan is not None and device in job.plan.devices else []


def stuck(job: Job, event: Stuck) -> Answer:
    """The same devices run the round again, in a generation in which nothing is under way."""
    if job.phase != "running" or event.generation != job.generation:
        return job, []
    said = Say("stuck", f"round {job.completed} is stuck: {event.reason}", {"worst_s": event.worst_s})
    job, effects = react(job)
    return job, [said, *effects]


def without(job: Job, device: str, reason: str) -> Job:
    """Count a device out, with all that it keeps; a plan that was proposed with it is void."""
    return replace(
        job,
        excluded=(*(x for x in job.excluded if x[0] != device), (device, reason)),
        leaving=tuple(x for x in job.leaving if x[0] != device),
        serving=job.serving - {device},
        proposal=None,
        halted=tuple(h for h in job.halted if h.agent != device),
        held=frozenset(h for h in job.held if h.device != device),
    )


def react(job: Job) -> Answer:
    """Go on as far as what is known allows: halt the workers, take the proposed plan, or ask for another one."""
    plan = job.plan
    if plan is None:
        return job, [make_plan(job)]
    lost = left_out(job)
    whole = moving.covers(plan, set(plan.devices) - lost)
    stop: list[Effect] = [StopFeed()] if job.phase in TRAINING else []
    job = replace(job, ready=frozenset(), finished=frozenset())
    if not (whole and job.live) or (job.heavy and job.proposal is None):
        job = replace(job, phase="planning", live=False, halted=(), proposal=None)
        return job, [*stop, make_plan(job, "full" if job.heavy else "replay")]
    if {item.agent for item in job.halted} >= set(plan.devices) - lost:
        if (better := job.proposal) is not None:
            said = Say("planned", f"plan {better.generation}: {better.describe()}")
            return moving.move_on(moving.begin(job, better), plan, said)
        return replace(job, phase="planning"), [*stop, make_plan(job, "regroup")]
    if job.phase == "halting":
        return job, []
    return replace(job, phase="halting", halted=()), [*stop, Halt(plan)]


def halted(job: Job, event: Halted) -> Answer:
    """A worker has stopped; when all have, the change can be made."""
    plan = job.plan
    if job.phase != "halting" or plan is None or event.generation != job.generation:
        return job, []
    if event.agent not in plan.devices or event.agent in left_out(job):
        return job, []
    others = tuple(item for item in job.halted if item.agent != event.agent)
    return react(replace(job, halted=(*others, event)))


def late(job: Job, event: Late) -> Answer:
    """Workers that are not where they should be in time are lost."""
    if event.generation != job.generation or job.plan is None or job.phase != event.phase:
        return job, []
    done = job.ready if job.phase == "preparing" else {item.agent for item in job.halted}
    missing = [d for d in job.plan.devices if d not in done and d not in left_out(job)]
    what = "did not get ready in time" if job.phase == "preparing" else "did not stop in time"
    effects: list[Effect] = []
    for device in missing:
        job = without(job, device, f"its worker {what}")
        effects += [Say("device-late", f"{device} {what}", {"device": device}), *_end_of(job, device)]
    if not missing:
        return job, []
    job, more = react(job)
    return job, [*effects, *more]


# Changes that nobody's loss forces


def leaves(job: Job, event: DeviceLeaves) -> Answer:
    """A device is about to leave: plan without it beside training, then hand its stage over."""
    if job.phase not in ACTIVE:
        return job, []
    if job.plan is None or job.phase in ("profiling", "planning"):
        return gone(job, DeviceGone(event.device, event.reason))
    if not involved(job, event.device) or event.device in leaving(job):
        return job, []
    said = Say("device-leaves", f"{event.device} leaves: {event.reason}", {"device": event.device})
    job = replace(job, leaving=(*job.leaving, (event.device, event.reason)))
    return job, [said, *hand_over(job)]


def hand_over(job: Job) -> list[Effect]:
    """Ask for a plan without the devices that are about to leave; it waits until the job runs."""
    names = leaving(job)
    if job.phase != "running" or job.plan is None or not names & set(job.plan.devices):
        return []
    return [Consider(job.generation, left_out(job) | names, job.plan, f"without {', '.join(sorted(names))}", must=True)]


def back(job: Job, device: str) -> Answer:
    """A device was born again: perhaps the job is faster with it."""
    job = replace(
        job,
        excluded=tuple(x for x in job.excluded if x[0] != device),
        leaving=tuple(x for x in job.leaving if x[0] != device),
    )
    if job.phase != "running" or job.plan is None or job.heavy or device in job.plan.devices:
        return job, []
    return job, [Consider(job.generation, left_out(job) | leaving(job), job.plan, f"{device} can take part")]


def proposed(job: Job, event: Proposed) -> Answer:
    """Take a plan that was made beside training: the workers halt, then the stages are handed over."""
    plan = job.plan
    if job.phase != "running" or plan is None or event.generation != job.generation:
        return job, []
    if (left_out(job) | leaving(job)) & set(event.plan.devices):
        return job, []
    better = event.plan.model_copy(update={"generation": job.generation + 1})
    job, effects = react(replace(job, proposal=better, live=True))
    return job, [Say("change", event.why), *effects]
