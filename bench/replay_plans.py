"""How near a light plan after a loss comes to a full new plan, on random small clusters that lose a random device.

    python -m bench.replay_plans --instances 500

prints the light plan's throughput as a part of the full plan's (both simulated): median, 5th percentile, worst; and how
often there was no light plan, so that a job plans anew. Fails (exit code 1) if it misses its targets: 95 % at the
median, 90 % at the 5th percentile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from dataclasses import replace
from random import Random

from tests.support.instances import instance, quantile

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.replay import regroup, replay


def ratio(seed: int) -> float | None:
    """Throughput of the light plan by that of the full one; 0 if there is no light one, None if nothing is lost."""
    problem = instance(seed)
    old = PLANNERS["asteroid"](problem, round_time)
    if old is None or len(old.devices) < 2:
        return None
    lost = Random(seed).choice(old.devices)
    left = replace(problem, sites=tuple(site for site in problem.sites if site.name != lost))
    full = PLANNERS["asteroid"](left, round_time)
    if full is None:
        return None
    light = regroup(left, old, round_time) or replay(left, old, round_time)
    assert full.predicted_s is not None
    return 0.0 if light is None or light.predicted_s is None else full.predicted_s / light.predicted_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=500, help="with a plan over several devices")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    ratios: list[float] = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for one in pool.imap(ratio, range(100 * arguments.instances), chunksize=5):
            if one is not None:
                ratios.append(one)
            if len(ratios) == arguments.instances:
                break
        pool.terminate()
    light = [one for one in ratios if one]
    median, low, worst = (quantile(light, part) for part in (0.5, 0.05, 0.0))
    print(f"python -m bench.replay_plans --instances {arguments.instances}")
    print(f"{len(ratios)} losses, {len(ratios) - len(light)} of them without a light plan")
    print(f"throughput of the full plan: median {median:.1%}, 5th percentile {low:.1%}, worst {worst:.1%}")
    return int(median < 0.95 or low < 0.9)


if __name__ == "__main__":
    sys.exit(main())
