"""Plans for the simulated cluster: anything legal, and now and then what the real planner makes."""

from __future__ import annotations

from random import Random

from tests.simulation.model import SHARED, Task
from tests.support import problems

from asteroid_coordinator.job.state import MakePlan, Way
from asteroid_coordinator.planner.problem import Problem, Tied, Wishes
from asteroid_coordinator.planner.replay import regroup, replay
from asteroid_core.costs import Costs
from asteroid_core.plan import Plan, Share, Stage

REAL = 0.1
"""Part of the light plans that the product's planner makes (it takes longer than all the rest)."""


def make(effect: MakePlan, task: Task, present: list[str], snapshots: bool, random: Random) -> tuple[Plan, Way]:
    """A plan over the devices that are present."""
    old = effect.old
    problem = _problem(task, present)
    made: Plan | None = None
    way: Way = effect.way
    if old is not None and way == "regroup":
        made = regroup(problem, old, _fast) if random.random() < REAL else _shares(old, present, random)
    if old is not None and made is None and way != "full" and random.random() < REAL:
        made, way = replay(problem, old, _fast), "replay"
    if made is None:
        way = "replay" if old is not None else "full"
        made = _any(task, problem, present, random)
    stages = [_backed(stage, made, random) if snapshots else _bare(stage) for stage in made.stages]
    return _with(made, stages, effect.generation), way


def _with(plan: Plan, stages: list[Stage], generation: int) -> Plan:
    """A new plan: ``model_copy`` would copy the devices that the old one has looked up."""
    fields = {name: getattr(plan, name) for name in Plan.model_fields}
    return Plan(**{**fields, "stages": tuple(stages), "generation": generation})


def _problem(task: Task, present: list[str]) -> Problem:
    tied = {SHARED: Tied((0, task.layers - 1), 24)} if task.tied else {}
    return problems.problem(
        [problems.site(name, [0.01] * task.layers) for name in present],
        [problems.layer(number) for number in range(task.layers)],
        Wishes(task.batch, (task.micro,)),
        tied,
        task.optimizer,
    )


def _fast(plan: Plan, costs: Costs) -> float:
    """Stands for the judge: the slowest stage decides."""
    return max((stage.hi - stage.lo) / len(stage.shares) for stage in plan.stages)


def _split(total: int, parts: int, random: Random) -> list[int]:
    cuts = sorted(random.sample(range(1, total), parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def _any(task: Task, problem: Problem, present: list[str], random: Random) -> Plan:
    """Any structure: devices in any order, now and then one that is left out."""
    names = random.sample(present, len(present))
    if len(names) > 2 and random.random() < 0.15:
        names.pop()
    count = random.randint(1, min(len(names), task.layers))
    sizes = _split(len(names), count, random)
    while max(sizes) > task.micro:
        count = min(len(names), task.layers)
        sizes = _split(len(names), count, random)
    heights = _split(task.layers, count, random)
    micros = task.batch // task.micro
    wide = random.random() < 0.5
    stages, at = [], 0
    for number, (size, height) in enumerate(zip(sizes, heights, strict=True)):
        group, names = names[:size], names[size:]
        samples = _split(task.micro, size, random)
        left = count - number
        stages.append(
            Stage(
                lo=at,
                hi=at + height,
                shares=tuple(Share(device=d, samples=s) for d, s in zip(group, samples, strict=True)),
                warm_up=min(2 * left - 1 if wide else left, micros),
            )
        )
        at += height
    ties = problem.ties([(stage.lo, stage.hi) for stage in stages])
    return Plan(
        generation=1,
        stages=tuple(stages),
        micro_size=task.micro,
        micro_count=micros,
        order=random.choice(["1f1b", "1f1b", "gpipe"]),
        ties=ties,
        predicted_s=0.5,
    )


def _shares(old: Plan, present: list[str], random: Random) -> Plan | None:
    """The old stages with new shares for who is left."""
    stages = []
    for stage in old.stages:
        left = [device for device in stage.devices if device in present]
        if not left:
            return None
        samples = _split(old.micro_size, len(left), random)
        shares = tuple(Share(device=d, samples=s) for d, s in zip(left, samples, strict=True))
        stages.append(stage.model_copy(update={"shares": shares}))
    return _with(old, stages, old.generation)


def _backed(stage: Stage, plan: Plan, random: Random) -> Stage:
    others = [device for device in plan.devices if device not in stage.devices]
    if len(stage.shares) > 1 or not others:
        return _bare(stage)
    return stage.model_copy(update={"backups": (random.choice(others),)})


def _bare(stage: Stage) -> Stage:
    return stage.model_copy(update={"backups": ()})
