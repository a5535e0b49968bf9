"""What several baselines share: even division, the mean device, and the choice of a micro-batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from asteroid_coordinator.planner.costing import costs_of
from asteroid_coordinator.planner.problem import Problem, Site
from asteroid_coordinator.planner.refine import Judge
from asteroid_core.plan import Plan


def even(problem: Problem, group: Sequence[Site], lo: int, hi: int, micro: int, alive: int) -> tuple[int, ...] | None:
    """Divide a micro-batch evenly; None if some device's memory does not suffice."""
    size, more = divmod(micro, len(group))
    shares = tuple(size + (n < more) for n in range(len(group)))
    fits = all(
        samples <= problem.most(site, lo, hi, alive, sum(1 for s in shares if s))
        for site, samples in zip(group, shares, strict=True)
        if samples
    )
    return shares if fits else None


def by_memory(problem: Problem) -> list[Site]:
    """Devices, the one that lends most first."""
    return sorted(problem.sites, key=lambda site: (-site.budget_mb, site.name))


def fastest(problem: Problem, judge: Judge, plans: Iterable[Plan | None]) -> Plan | None:
    """The plan that the simulator finds fastest, with its time; None if there is none."""
    judged = [(judge(plan, costs_of(plan, problem)), n, plan) for n, plan in enumerate(plans) if plan is not None]
    if not judged:
        return None
    seconds, _, plan = min(judged, key=lambda entry: entry[:2])
    return plan.model_copy(update={"predicted_s": seconds})


def each_micro(problem: Problem, judge: Judge, make: Callable[[int], Plan | None]) -> Plan | None:
    """The best plan over the micro-batch sizes that the job allows; the published planners take the size as given."""
    return fastest(problem, judge, (make(micro) for micro in problem.wishes.micro_sizes))


class MeanDevice:
    """The device that planners for equal devices see: mean times and links, memory without end.

    Args:
        problem: times of the real ones.
        micro: samples of a micro-batch.
    """

    def __init__(self, problem: Problem, micro: int) -> None:
        self._problem = problem
        self._micro = micro
        self._times: dict[int, tuple[list[float], list[float]]] = {}
        self.bytes_per_s = sum(s.profile.bytes_per_s for s in problem.sites) / len(problem.sites)

    def compute(self, lo: int, hi: int, devices: int) -> tuple[float, float]:
        """Seconds of forward and of backward of layers ``[lo, hi)`` when so many devices share a micro-batch."""
        samples = max(-(-self._micro // devices), 1)
        if samples not in self._times:
            tables = [self._problem.times(site, samples) for site in self._problem.sites]
            layers = range(self._problem.sums.count + 1)
            self._times[samples] = (
                [sum(forward[at] for forward, _ in tables) / len(tables) for at in layers],
                [sum(backward[at] for _, backward in tables) / len(tables) for at in layers],
            )
        forward, backward = self._times[samples]
        return forward[hi] - forward[lo], backward[hi] - backward[lo]

    def boundary(self, at: int) -> tuple[float, float]:
        """Seconds of the activations, and of the gradients, of a micro-batch across the cut before layer ``at``."""
        forward, backward = self._problem.sums.boundary(at)
        return self._micro * forward / self.bytes_per_s, self._micro * backward / self.bytes_per_s

    def allreduce(self, lo: int, hi: int, devices: int) -> float:
        """Seconds of an allreduce of the weights of layers ``[lo, hi)`` over so many devices."""
        return 2 * (devices - 1) / devices * self._problem.sums.trainable(lo, hi) / self.bytes_per_s
