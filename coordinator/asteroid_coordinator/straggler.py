"""Notices a device that computes more slowly than its profile says, and gives the profile that it has now. Pure.

How a runner uses it::

    watch = Watch()
    # a plan begins, the first one or another: what is known of slow devices stays
    watch = watch.begun(busy_of(plan, costs_of(plan, problem_of_unscaled_profiles)))
    # all reports of a round are there
    watch, changes = watch.after([Pace(r.agent, r.busy_s, r.seconds) for r in reports])
    # for a plan in the background, see planner/worth.py for whether it pays
    profiles = {name: scaled(profile, watch.factor(name)) for name, profile in profiles.items()}

Predictions come from the profiles as measured, never from scaled ones: then a device that has recovered is seen to be
as fast as its profile, also under a plan that was made for it when it was slow.

What all devices have in common (a backend that is slower in a pipeline than alone) is no straggler, and to plan for it
changes nothing: a device is compared with how its companions do against their own profiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from asteroid_core.costs import Costs
from asteroid_core.plan import Plan
from asteroid_core.profile import DeviceProfile


@dataclass(frozen=True)
class Rule:
    """When a device is slow. The gaps between the factors are what keeps it from flapping.

    Attributes:
        window: rounds that are looked at; nothing is said before there are so many.
        skip: first rounds of a plan that do not count (memory is touched for the first time, caches are cold).
        slow: median factor from which a device is slow.
        normal: median factor below which a slow one is back to normal.
        drift: by which the factor of a slow one has to change, either way, to be said again.
    """

    window: int = 8
    skip: int = 1
    slow: float = 1.5
    normal: float = 1.2
    drift: float = 1.3

    def __post_init__(self) -> None:
        if self.window < 3 or self.skip < 0 or not 1 <= self.normal < self.slow or self.drift <= 1:
            raise ValueError("a window of at least 3, 1 <= normal < slow, drift > 1")


RULE = Rule()


@dataclass(frozen=True)
class Pace:
    """What a device says of a round.

    Attributes:
        device: its name.
        busy_s: seconds in which it computed.
        seconds: the round.
    """

    device: str
    busy_s: float
    seconds: float


@dataclass(frozen=True)
class Change:
    """Something to say, and a reason to plan.

    Attributes:
        device: its name.
        factor: times as long as its profile says; 1: back to normal.
        rounds: that this was seen over.
    """

    device: str
    factor: float
    rounds: int

    @property
    def slow(self) -> bool:
        """Whether the device is slow now."""
        return self.factor > 1

    def describe(self) -> str:
        """One line for people."""
        if not self.slow:
            return f"{self.device} is as fast as its profile again, over the last {self.rounds} rounds"
        return f"{self.device} is {self.factor:.1f} times slower than its profile, over the last {self.rounds} rounds"


@dataclass(frozen=True)
class Watch:
    """What is known of the pace of every device.

    Attributes:
        rule: when a device is slow.
        predicted: busy seconds of a round of each device of the plan, by its profile as measured.
        recent: of each device, measured by predicted in the last rounds.
        slow: factors of the devices that are slow.
        skip: rounds of this plan that do not count yet.
    """

    rule: Rule = RULE
    predicted: Mapping[str, float] = field(default_factory=dict)
    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)
    skip: int = 0

    def begun(self, predicted: Mapping[str, float]) -> Watch:
        """A plan begins: rounds are counted anew, slow devices stay slow until they have shown better."""
        return replace(self, predicted=dict(predicted), recent={}, skip=self.rule.skip)

    def forgotten(self, device: str) -> Watch:
        """A device was profiled anew: what its old profile was worth is no matter."""
        slow = {name: factor for name, factor in self.slow.items() if name != device}
        recent = {name: ratios for name, ratios in self.recent.items() if name != device}
        return replace(self, slow=slow, recent=recent)

    def factor(self, device: str) -> float:
        """By which a device's profile has to be stretched for planning; 1 if it is not slow."""
        return self.slow.get(device, 1.0)

    def after(self, paces: Iterable[Pace]) -> tuple[Watch, tuple[Change, ...]]:
        """Take the reports of one round.

        Args:
            paces: of the devices of the plan; what cannot be true (a clock that jumped) is left out.
        """
        if self.skip > 0:
            return replace(self, skip=self.skip - 1), ()
        recent = dict(self.recent)
        for pace in paces:
            expected = self.predicted.get(pace.device, 0.0)
            if expected <= 0 or not 0 < pace.busy_s <= pace.seconds * 1.05:
                continue
            recent[pace.device] = (*recent.get(pace.device, ()), pace.busy_s / expected)[-self.rule.window :]
        watch = replace(self, recent=recent)
        slow, changes = dict(self.slow), []
        for device, factor in watch.factors().items():
            change = watch._judge(device, factor)
            if change is None:
                continue
            changes.append(change)
            if change.slow:
                slow[device] = change.factor
            else:
                slow.pop(device, None)
        return replace(watch, slow=slow), tuple(changes)

    def factors(self) -> dict[str, float]:
        """Of each device with a full window: its median, by what its companions have in common (at least 1)."""
        own = {
            device: statistics.median_low(ratios)
            for device, ratios in sorted(self.recent.items())
            if len(ratios) == self.rule.window
        }
        out = {}
        for device, ratio in own.items():
            others = [other for name, other in own.items() if name != device]
            out[device] = ratio / max(1.0, statistics.median_low(others) if others else 1.0)
        return out

    def _judge(self, device: str, factor: float) -> Change | None:
        known = self.slow.get(device)
        if known is None:
            return Change(device, factor, self.rule.window) if factor >= self.rule.slow else None
        if factor < self.rule.normal:
            return Change(device, 1.0, self.rule.window)
        drifted = max(factor / known, known / factor) >= self.rule.drift
        return Change(device, factor, self.rule.window) if drifted else None


def busy_of(plan: Plan, costs: Costs) -> dict[str, float]:
    """Seconds that each device of a plan computes in a round, by its costs; waiting and transfers are not in it."""
    return {
        cost.device: plan.micro_count * (cost.forward_s + cost.backward_s) + cost.step_s + cost.reduce_s
        for cost in costs.devices
    }


def scaled(profile: DeviceProfile, factor: float) -> DeviceProfile:
    """The profile of a device whose processor takes so many times as long; its link is what it was."""
    if factor == 1.0:
        return profile

    def stretched(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(factor * one for one in seconds)

    layers = tuple(
        times.model_copy(
            update={
                "forward_s": stretched(times.forward_s),
                "backward_s": stretched(times.backward_s),
                "step_s": factor * times.step_s,
            }
        )
        for times in profile.layers
    )
    return profile.model_copy(
        update={
            "layers": layers,
            "reduce_s_per_byte": factor * profile.reduce_s_per_byte,
            "wire_s_per_byte": factor * profile.wire_s_per_byte,
        }
    )
