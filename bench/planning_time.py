"""How long planning takes on one core, and what coarsening the layers costs.

    python -m bench.planning_time [--repeats 3]

Random clusters and models: devices of three speeds and two link speeds, layers of all sizes, memory from plenty to
tight. Seconds are those of the processor (``process_time``) of the one thread that plans. The second table plans the
same problems with fewer layers left in the dynamic program; a plan's round time is the simulator's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from random import Random

from tests.support.problems import layer, problem

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.problem import Problem, Site, Wishes
from asteroid_coordinator.planner.search import Effort, search
from asteroid_core.profile import DeviceProfile, LayerTimes

SIZES = ((50, 8, 1.0), (200, 32, 10.0), (120, 100, 60.0))
"""Layers, devices, and the seconds that we aim at."""
BATCHES = (1, 2, 4, 8, 16, 32)
COARSE = (8, 12, 20, 32, 50)


def cluster(layers: int, devices: int, seed: int) -> Problem:
    """A random problem of that size."""
    random = Random(seed)
    made = [
        layer(n, int(10 ** random.uniform(4, 6.5)), int(10 ** random.uniform(3, 5.5)), int(10 ** random.uniform(3, 5)))
        for n in range(layers)
    ]
    base = [10 ** random.uniform(-4, -2.5) for _ in range(layers)]
    sites = []
    for number in range(devices):
        speed = random.choice([1, 2.5, 5])
        own = [seconds * random.uniform(0.8, 1.2) for seconds in base]
        times = tuple(
            LayerTimes(
                batches=BATCHES,
                forward_s=tuple((3e-4 + b * s) / speed for b in BATCHES),
                backward_s=tuple(2 * (3e-4 + b * s) / speed for b in BATCHES),
            )
            for s in own
        )
        profile = DeviceProfile(
            device=f"d{number}",
            backend="torch",
            layers=times,
            bytes_per_s=random.choice([12e6, 12e6, 120e6]),
            message_s=5e-4,
        )
        sites.append(Site(f"d{number}", profile, random.choice([50, 200, 1000])))
    return problem(sites, made, Wishes(batch=256, micro_sizes=tuple(reversed(BATCHES))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="random problems of each size")
    arguments = parser.parse_args()
    print(f"python -m bench.planning_time --repeats {arguments.repeats}")
    print(f"{'layers':>7}{'devices':>9}{'median s':>10}{'worst s':>9}{'aim s':>7}")
    for layers, devices, aim in SIZES:
        seconds = []
        for seed in range(arguments.repeats):
            given = cluster(layers, devices, seed)
            begin = time.process_time()
            if search(given, round_time) is None:
                raise SystemExit("no plan fits")
            seconds.append(time.process_time() - begin)
        print(f"{layers:7}{devices:9}{statistics.median(seconds):10.2f}{max(seconds):9.2f}{aim:7.0f}", flush=True)
    print()
    print("50 layers x 8 devices: round time with fewer layers in the dynamic program, relative to all 50")
    rounds: dict[int, list[float]] = {}
    for edges in COARSE:
        for seed in range(arguments.repeats):
            given = cluster(50, 8, seed)
            usual = Effort.of(given)
            plan = search(given, round_time, replace(usual, edges=min(edges, usual.edges), fine=edges))
            if plan is None or plan.predicted_s is None:
                raise SystemExit("no plan fits")
            rounds.setdefault(edges, []).append(plan.predicted_s)
    for edges, found in rounds.items():
        ratios = [a / b for a, b in zip(found, rounds[COARSE[-1]], strict=True)]
        print(f"{edges:7} layers: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")
    papers = []
    for seed in range(arguments.repeats):
        given = cluster(50, 8, seed)
        mine, theirs = search(given, round_time), PLANNERS["asteroid-paper"](given, round_time)
        if mine is not None and theirs is not None and mine.predicted_s and theirs.predicted_s:
            papers.append(theirs.predicted_s / mine.predicted_s)
    print(f"asteroid-paper on the same: median {statistics.median(papers):.3f} times the round time of asteroid")
    return 0


if __name__ == "__main__":
    sys.exit(main())
