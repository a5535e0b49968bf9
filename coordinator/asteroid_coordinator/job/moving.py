"""What a new plan means for the workers: who goes on with what it has, who fetches what from whom. Pure.

Three ways, by what the workers can do. **Go on**: new shares, everybody keeps its stage. **Go back**: a stage is lost,
all take the state of the newest round that is whole. **Move on**: nobody is lost, so the stages are handed over as they
are, and no round is run twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from asteroid_coordinator.job.state import Effect, Job, Prepare, Say
from asteroid_core.held import Held, Source, newest, sources
from asteroid_core.ids import COORDINATOR
from asteroid_core.plan import Plan

Answer = tuple[Job, list[Effect]]


def begin(job: Job, plan: Plan) -> Job:
    """Return the job at the beginning of the generation of a plan; what the workers have is decided after."""
    return replace(
        job,
        phase="preparing",
        plan=plan,
        generation=plan.generation,
        ready=frozenset(),
        reported=(),
        finished=frozenset(),
        abandoned=0,
        proposal=None,
        leaving=tuple(x for x in job.leaving if x[0] in plan.devices),
    )


def go_on(job: Job, old: Plan | None, said: Say) -> Answer:
    """New shares: everybody goes on with the state it has, from where the first one is."""
    plan = job.plan
    assert plan is not None
    start, scale = _furthest(job)
    behind = sorted(item.agent for item in job.halted if item.rounds < start)
    same = old is not None and old.devices == plan.devices
    who = "all keep their shares" if same else "the survivors get new shares"
    words = f"{who} and run round {start} again: no weights move, no round is lost"
    if behind:
        words = f"{who} and go on with round {start}; {', '.join(behind)} steps first"
    held = frozenset(item for item in job.held if item.device in plan.devices)
    base = newest(held, plan.layers, job.saved)
    job = replace(job, live=True, halted=(), start_round=start, completed=start, held=_of_round(held, base))
    prepare = Prepare(plan, start, live=True, saved=start == job.saved, base=base, scale=scale)
    return job, [said, Say("regroup", words, {"round": start}), prepare]


def go_back(job: Job, old: Plan | None, said: Say) -> Answer:
    """Boundaries move: everybody takes the state of the newest round that is whole."""
    plan = job.plan
    assert plan is not None
    start = newest(job.held, plan.layers, job.saved)
    come = sources(job.held, start, plan, COORDINATOR, COORDINATOR if job.heavy else None)
    base = _of_round(job.held, start)
    serving = _outside(plan, base if job.heavy else come)
    effects: list[Effect] = [said]
    if old is not None:
        lost = job.completed - start
        words = f"back to round {start}" + (f", {lost} rounds are run again" if lost > 0 else "")
        effects.append(_moves("replay", words, come, {"round": start, "again": max(0, lost)}))
    job = replace(
        job,
        live=False,
        halted=(),
        start_round=start,
        completed=start,
        durable=start,
        serving=serving,
        held=frozenset(item for item in base if item.device in serving or item.device in plan.devices),
    )
    prepare = Prepare(plan, start, tuple(come.items()), serving=serving, saved=start == job.saved, base=start)
    return job, [*effects, prepare]


def move_on(job: Job, old: Plan, said: Say) -> Answer:
    """Stages are handed over as they are: all step as far as the first one, then each fetches what is new to it."""
    plan = job.plan
    assert plan is not None
    start, scale = _furthest(job)
    now = [
        Held(device=h.agent, generation=old.generation, rounds=start, lo=stage.lo, hi=stage.hi)
        for h in job.halted
        for stage in [old.stages[old.stage_of(h.agent)]]
    ]
    come = sources(now, start, plan, COORDINATOR)
    moved = frozenset(h.agent for h in job.halted)
    serving = moved - set(plan.devices)
    # Until the new stages are loaded, the last durable round is what a loss goes back to.
    base = newest(job.held, plan.layers, job.saved)
    there = serving | set(plan.devices)
    held = frozenset(item for item in _of_round(job.held, base) if item.device in there)
    effects = [said, _moves("move", f"from round {start}, no round is lost", come, {"round": start, "again": 0})]
    job = replace(job, live=False, halted=(), start_round=start, completed=start, serving=serving, held=held)
    prepare = Prepare(
        plan,
        start,
        tuple(come.items()),
        moved=moved,
        serving=serving,
        saved=start == job.saved,
        base=base,
        scale=scale,
    )
    return job, [*effects, prepare]


def covers(plan: Plan, devices: Collection[str]) -> bool:
    """Whether each stage has one of these devices."""
    return all(set(stage.devices) & set(devices) for stage in plan.stages)


def _furthest(job: Job) -> tuple[int, float | None]:
    """Rounds of the worker that has stepped most, and by what its last gradients were multiplied."""
    start = max(item.rounds for item in job.halted)
    return start, next((item.scale for item in job.halted if item.rounds == start), None)


def _outside(plan: Plan, needed: frozenset[Held] | Mapping[str, tuple[Source, ...]]) -> frozenset[str]:
    """Devices that are needed although the plan leaves them out."""
    if isinstance(needed, frozenset):
        names = {item.device for item in needed}
    else:
        names = {source.device for each in needed.values() for source in each}
    return frozenset(names - set(plan.devices) - {COORDINATOR})


def _moves(kind: str, words: str, come: Mapping[str, tuple[Source, ...]], data: dict[str, object]) -> Say:
    """What goes where, as a sentence and as data."""
    moves = [
        {"from": source.device, "to": device, "lo": source.lo, "hi": source.hi}
        for device, each in come.items()
        for source in each
        if source.device != device
    ]
    said = [f"layers {m['lo']}-{int(str(m['hi'])) - 1} from {m['from']} to {m['to']}" for m in moves]
    words += f"; {', '.join(said)}" if said else "; no layer moves"
    return Say(kind, words, {**data, "moves": moves})


def _of_round(held: frozenset[Held], rounds: int) -> frozenset[Held]:
    return frozenset(item for item in held if item.rounds == rounds)
