"""Random small planning problems, and how near a planner comes to the best plan of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.support.problems import BATCHES, layer, problem

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.problem import Problem, Site, Tied, Wishes
from asteroid_core.costs import FeedCost, Network
from asteroid_core.profile import DeviceProfile, LayerTimes


def instance(seed: int) -> Problem:
    """Up to 8 layers and 4 devices, mixed speeds, memory and links; a third has tight memory, some tied weights."""
    random = Random(seed)
    count, devices = random.randint(2, 8), random.randint(1, 4)
    scale = 10 ** random.uniform(3.5, 6.5)
    layers = [
        layer(
            i,
            int(scale * 10 ** random.uniform(-1, 1)),
            int(10 ** random.uniform(3, 5.5)),
            int(10 ** random.uniform(3, 5.5)),
        )
        for i in range(count)
    ]
    seconds = [10 ** random.uniform(-4, -2.5) for _ in range(count)]
    floor = 10 ** random.uniform(-4.5, -2.5)
    link = 10 ** random.uniform(6.3, 8.3)
    whole = sum(x.parameter_bytes * 4 + x.activation_bytes * 8 for x in layers) / 1e6
    sites = []
    for number in range(devices):
        speed = random.choice([1, 2.5, 5]) * random.uniform(0.8, 1.2)
        own = [s * random.uniform(0.8, 1.25) for s in seconds]
        times = tuple(
            LayerTimes(
                batches=BATCHES,
                forward_s=tuple((floor + b * s) / speed for b in BATCHES),
                backward_s=tuple(2 * (floor + b * s) / speed for b in BATCHES),
            )
            for s in own
        )
        profile = DeviceProfile(
            device=f"d{number}",
            backend="torch",
            layers=times,
            bytes_per_s=link * random.choice([1, 1, 0.3]),
            message_s=random.choice([1e-4, 1e-3]),
        )
        sites.append(Site(f"d{number}", profile, whole * random.uniform(0.2, 0.9) if seed % 3 == 0 else 1e4))
    network = Network(direct=random.random() < 0.3, hub_bytes_per_s=random.choice([None, link, 3 * link]))
    feed = FeedCost(sample_bytes=10 ** random.uniform(2, 4.5), bytes_per_s=link) if random.random() < 0.3 else None
    tied = {"tied": Tied((0, count - 1), layers[0].parameter_bytes // 2)} if random.random() < 0.2 else {}
    wishes = Wishes(batch=random.choice([8, 16, 32]), micro_sizes=(8, 4, 2, 1))
    return replace(problem(sites, layers, wishes, tied), network=network, feed=feed)


@dataclass(frozen=True)
class Gap:
    """One instance.

    Attributes:
        seed: makes it again.
        best_s: round time of the best plan; None if nothing fits.
        seconds: of each planner's plan; None where it found none.
    """

    seed: int
    best_s: float | None
    seconds: dict[str, float | None]

    def ratio(self, planner: str) -> float | None:
        """A planner's round time relative to the best; None if either is missing."""
        mine = self.seconds[planner]
        return None if mine is None or self.best_s is None else mine / self.best_s

    def missed(self, planner: str) -> bool:
        """Whether something fits and the planner found nothing."""
        return self.best_s is not None and self.seconds[planner] is None


def gap(seed: int, planners: Sequence[str] = ("asteroid",)) -> Gap:
    """Plan one instance with each planner and with the exhaustive one."""
    given = instance(seed)
    plans = {name: PLANNERS[name](given, round_time) for name in planners}
    best = PLANNERS["exhaustive"](given, round_time)
    return Gap(
        seed,
        None if best is None else best.predicted_s,
        {name: None if plan is None else plan.predicted_s for name, plan in plans.items()},
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which that part of the values lies (nearest rank)."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * part), len(ranked) - 1)]
