"""Says what a change of plan costs, and whether it pays back: full plan after a light one, joining device, straggler.

How a runner asks, with a candidate that ``plan_job`` has made in the background, at the end of any round::

    candidate_s = calibrated(candidate.predicted_s, plan.predicted_s, measured_s)
    cost = change_cost(problem, plan, candidate, again=rounds_since_the_durable_one, round_s=candidate_s)
    verdict = pays(measured_s, candidate_s, rounds_left, cost.seconds)
    if verdict.pays: ...                                 # halt, and prepare the candidate
    narrator.event("worth", verdict.describe())          # either way: why

Both round times have to come from the same source: the simulator for both; or what is measured for the plan in force
and ``calibrated`` for the candidate, since a simulator that errs by 20 % would else see gains where there are none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from asteroid_coordinator.planner.problem import Problem
from asteroid_core.memory import moments
from asteroid_core.plan import Plan

GAIN = 0.05
"""Part of a round time that a change has to save: predictions are no better than that."""
PAYS_BACK = 2.0
"""A change has to save so many times what it costs: plans do not live as long as they are thought to."""
RESTART_S = 1.0
"""Seconds from the last round of a plan to the first of the next where nothing has to be fetched: programs are loaded
and checked, links opened."""
ENOUGH = 0.9
"""A light plan with less than this part of a full plan's predicted throughput is followed by the full one."""


@dataclass(frozen=True)
class Rule:
    """When a change pays.

    Attributes:
        gain: part of the round time that it has to save, more than 0: so no plan is left and taken again.
        pays_back: times its cost that it has to save in the rounds that remain, at least 1.
    """

    gain: float = GAIN
    pays_back: float = PAYS_BACK

    def __post_init__(self) -> None:
        if not (0 < self.gain < 1 and self.pays_back >= 1):
            raise ValueError("a gain lies between 0 and 1, and a change has to pay back at least once")


RULE = Rule()


@dataclass(frozen=True)
class Verdict:
    """Whether to change the plan, and the figures behind it.

    Attributes:
        pays: whether to.
        gain: part of the round time that the candidate saves; negative if it is slower.
        saved_s: seconds saved in the rounds that remain, before the cost.
        cost_s: of the change.
    """

    pays: bool
    gain: float
    saved_s: float
    cost_s: float

    def describe(self) -> str:
        """One line for people."""
        answer = "pays" if self.pays else "does not pay"
        return (
            f"the change {answer}: a round {self.gain:.0%} shorter saves {self.saved_s:.0f} s "
            f"in what remains and costs {self.cost_s:.0f} s"
        )


def pays(current_s: float, candidate_s: float, rounds: int, cost_s: float, rule: Rule = RULE) -> Verdict:
    """Decide whether a candidate should replace the plan in force.

    It never does for a gain below the rule's; so if going from one plan to another pays, going back never does,
    whatever it costs. More rounds that remain, or a lower cost, never turn a yes into a no.

    Args:
        current_s: round time of the plan in force.
        candidate_s: of the candidate.
        rounds: that remain.
        cost_s: seconds in which nothing is trained for the change, see ``change_cost``.
        rule: hysteresis.
    """
    gain = 1.0 - candidate_s / current_s if current_s > 0 else 0.0
    saved = max(rounds, 0) * (current_s - candidate_s)
    return Verdict(gain >= rule.gain and saved > rule.pays_back * max(cost_s, 0.0), gain, saved, cost_s)


def far_from_full(light_s: float | None, full_s: float | None, enough: float = ENOUGH) -> bool:
    """Whether a light plan is so much slower than a full one that the full one is worth a look (``pays`` decides)."""
    return light_s is not None and full_s is not None and full_s < enough * light_s


def calibrated(candidate_s: float, predicted_s: float, measured_s: float | None) -> float:
    """The candidate's round time, stretched by as much as the plan in force takes longer than it was predicted to."""
    if measured_s is None or measured_s <= 0 or predicted_s <= 0:
        return candidate_s
    return candidate_s * measured_s / predicted_s


@dataclass(frozen=True)
class ChangeCost:
    """What a change of plan costs.

    Attributes:
        fetched: bytes of state that each device has to fetch; devices that fetch nothing are left out.
        transfer_s: until the last of them has it.
        again_s: rounds that are run again.
        restart_s: programs loaded, links opened.
    """

    fetched: dict[str, int]
    transfer_s: float
    again_s: float = 0.0
    restart_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it: nothing is trained meanwhile."""
        return self.transfer_s + self.again_s + self.restart_s


def change_cost(
    problem: Problem, old: Plan, new: Plan, *, again: int = 0, round_s: float = 0.0, restart_s: float = RESTART_S
) -> ChangeCost:
    """Return what going from one plan to the other costs.

    Args:
        problem: sizes of the layers, links of the devices that are there; others have nothing to send.
        old: the plan in force.
        new: the candidate.
        again: rounds that are run again; 0 where all have just taken a snapshot.
        round_s: of the new plan; default: its prediction.
        restart_s: see ``RESTART_S``.
    """
    fetched, seconds = transfers(problem, old, new)
    return ChangeCost(fetched, seconds, again * (round_s or new.predicted_s or 0.0), restart_s)


def transfers(problem: Problem, old: Plan, new: Plan) -> tuple[dict[str, int], float]:
    """Bytes of state (weights and moments) that each device fetches, and seconds until all have theirs.

    What a device trained before or kept as a backup it has. Of several others that have a layer, the one that sends
    the least so far is asked; what nobody has comes from the coordinator. All links are busy at once, so the slowest
    counts.
    """
    slots = moments(problem.optimizer)
    sizes = [layer.parameter_bytes + slots * layer.trainable_bytes for layer in problem.layers]
    had: list[set[str]] = [set() for _ in sizes]
    for stage in old.stages:
        names = {name for name in (*stage.devices, *stage.backups) if name in problem.site}
        for layer in range(stage.lo, stage.hi):
            had[layer] |= names
    down: Counter[str] = Counter()
    up: Counter[str] = Counter()
    coordinator = 0
    for stage in new.stages:
        for device in stage.devices:
            for layer in range(stage.lo, stage.hi):
                if device in had[layer]:
                    continue
                down[device] += sizes[layer]
                if had[layer]:
                    up[min(had[layer], key=lambda name: (up[name], name))] += sizes[layer]
                else:
                    coordinator += sizes[layer]
    seconds = [size / problem.site[name].profile.bytes_per_s for ends in (down, up) for name, size in ends.items()]
    if problem.feed is not None:
        seconds.append(coordinator / problem.feed.bytes_per_s)
    hub = problem.network.hub_bytes_per_s
    if hub is not None and not problem.network.direct:
        seconds.append(sum(down.values()) / hub)
    return {name: size for name, size in down.items() if size}, max(seconds, default=0.0)
