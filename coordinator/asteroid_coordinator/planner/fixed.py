"""A plan by hand: ``0-3 a:4 b:4 | 4-7 c:8``, layers and devices with their samples, stage by stage."""

from __future__ import annotations

import re

from asteroid_coordinator.planner.costing import memory_of
from asteroid_coordinator.planner.problem import Problem
from asteroid_core.errors import InputError, PlanError
from asteroid_core.plan import Plan, Share, Stage

_REMEDY = "Write plan.fixed like `0-3 a:4 b:4 | 4-7 c:8`: layers, then each device with its samples."
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_SHARE = re.compile(r"([A-Za-z0-9_-]+):(\d+)")


def named(text: str) -> frozenset[str]:
    """Devices that a plan by hand names."""
    return frozenset(match[1] for match in _SHARE.finditer(text))


def fixed_plan(text: str, problem: Problem, generation: int) -> Plan:
    """Read a plan by hand.

    Raises:
        InputError: it cannot be read, names a device that is not there, or does not match the job.
        PlanError: a device does not lend as much memory as it needs.
    """
    parts = [part.split() for part in text.split("|")]
    stages = []
    known = {site.name for site in problem.sites}
    for number, words in enumerate(parts):
        layers = _RANGE.fullmatch(words[0]) if words else None
        shares = [_SHARE.fullmatch(word) for word in words[1:]]
        if layers is None or not shares or None in shares:
            raise InputError(f"Stage {number} of plan.fixed cannot be read: {' '.join(words)!r}.", _REMEDY)
        lo = int(layers[1])
        hi = int(layers[2] or layers[1]) + 1
        group = tuple(Share(device=s[1], samples=int(s[2])) for s in shares if s is not None and int(s[2]) > 0)
        for share in group:
            if share.device not in known:
                raise InputError(
                    f"plan.fixed names {share.device}, which is not there.", f"Devices: {', '.join(sorted(known))}."
                )
        if not group:
            raise InputError(f"Stage {number} of plan.fixed has no samples.", _REMEDY)
        stages.append((lo, hi, group))
    micro = sum(share.samples for share in stages[0][2])
    batch = problem.wishes.batch
    if batch % micro:
        raise InputError(
            f"A micro-batch of {micro} samples does not divide a batch of {batch}.", "Change the shares or train.batch."
        )
    count = problem.sums.count
    if stages[-1][1] != count:
        raise InputError(f"plan.fixed ends at layer {stages[-1][1] - 1}, the model has layers 0-{count - 1}.", _REMEDY)
    micros = batch // micro
    try:
        plan = Plan(
            generation=generation,
            stages=tuple(
                Stage(lo=lo, hi=hi, shares=group, warm_up=min(2 * (len(stages) - n) - 1, micros))
                for n, (lo, hi, group) in enumerate(stages)
            ),
            micro_size=micro,
            micro_count=micros,
            order=problem.wishes.order,
            ties=problem.ties([(lo, hi) for lo, hi, _ in stages]),
            planner="fixed",
        )
    except ValueError as error:
        first = str(error).splitlines()[-2].strip() if len(str(error).splitlines()) > 2 else str(error)
        raise InputError(f"plan.fixed is not a plan: {first.split(' [')[0]}.", _REMEDY) from None
    for device, (need, budget) in memory_of(plan, problem).items():
        if need > budget:
            raise PlanError(
                f"plan.fixed needs {need:.0f} MB on {device}, which lends {budget:.0f} MB.",
                "Give it fewer layers or samples, or lend more.",
            )
    return plan
