"""How near a light plan after a loss comes to a full new plan, on random clusters that lose a random device.

    python -m bench.replay_plans --instances 500
    python -m bench.replay_plans --instances 100 --layers 50 --devices 8

The first is on small clusters of all kinds (up to 8 layers and 4 devices), the second on large ones of that size. It
prints the light plan's throughput as a part of the full plan's (both simulated): median, 5th percentile, worst; how
often there was no light plan, so that a job plans anew; how often a full plan would follow; and for both kinds the
processor seconds of planning and the bytes that move. Fails (exit code 1) if it misses its targets, which are for the
small ones: 95 % at the median, 90 % at the 5th percentile.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from dataclasses import dataclass, replace
from random import Random

from bench.planning_time import cluster
from tests.support.instances import instance, quantile

from asteroid_coordinator.planner import PLANNERS, round_time
from asteroid_coordinator.planner.replay import lighter, moved
from asteroid_coordinator.planner.worth import far_from_full

AGAIN = 10
"""Rounds that are run again where boundaries move: what snapshots are apart, in the order of magnitude."""


@dataclass(frozen=True)
class Loss:
    """One loss of one device.

    Attributes:
        seed: of the cluster.
        ratio: throughput of the light plan by that of the full one; None if there is no light one.
        regrouped: no weights move.
        light_cpu_s: processor seconds of the light planning.
        full_cpu_s: of the full planning.
        light_moved: bytes that move for the light plan.
        full_moved: for the full one.
        follows: a full plan would be looked at in the background.
    """

    seed: int
    ratio: float | None
    regrouped: bool
    light_cpu_s: float
    full_cpu_s: float
    light_moved: int = 0
    full_moved: int = 0
    follows: bool = False


def lose(case: tuple[int, int, int]) -> Loss | None:
    """Plan, lose a device, plan both ways; None if that one is not worth a look."""
    seed, layers, devices = case
    problem = cluster(layers, devices, seed) if layers else instance(seed)
    old = PLANNERS["asteroid"](problem, round_time)
    if old is None or len(old.devices) < 2:
        return None
    lost = Random(seed).choice(old.devices)
    sites = tuple(site for site in problem.sites if site.name != lost)
    begin = time.process_time()
    full = PLANNERS["asteroid"](replace(problem, sites=sites), round_time)
    full_cpu_s = time.process_time() - begin
    if full is None or full.predicted_s is None:
        return None
    left = replace(problem, sites=sites)  # without what the full planning has remembered
    begin = time.process_time()
    light, regrouped = lighter(left, old, round_time, again=AGAIN)
    light_cpu_s = time.process_time() - begin
    if light is None or light.predicted_s is None:
        return Loss(seed, None, False, light_cpu_s, full_cpu_s)
    return Loss(
        seed,
        full.predicted_s / light.predicted_s,
        regrouped,
        light_cpu_s,
        full_cpu_s,
        moved(left, old, light),
        moved(left, old, full),
        far_from_full(light.predicted_s, full.predicted_s),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=500, help="with a plan over several devices")
    parser.add_argument("--layers", type=int, default=0, help="of large clusters; 0: small ones of all kinds")
    parser.add_argument("--devices", type=int, default=8, help="of large clusters")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    losses: list[Loss] = []
    cases = zip(
        range(100 * arguments.instances), itertools.repeat(arguments.layers), itertools.repeat(arguments.devices)
    )
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for one in pool.imap(lose, cases, chunksize=5):
            if one is not None:
                losses.append(one)
            if len(losses) == arguments.instances:
                break
        pool.terminate()
    size = f" --layers {arguments.layers} --devices {arguments.devices}" if arguments.layers else ""
    print(f"python -m bench.replay_plans --instances {arguments.instances}{size}")
    light = [one for one in losses if one.ratio is not None]
    ratios = [one.ratio for one in light if one.ratio is not None]
    median, low, worst = (quantile(ratios, part) for part in (0.5, 0.05, 0.0))
    regrouped = sum(one.regrouped for one in light)
    follows = sum(one.follows for one in light)
    print(f"{len(losses)} losses: {regrouped} regrouped, {len(light) - regrouped} with moved boundaries, ", end="")
    print(f"{len(losses) - len(light)} without a light plan")
    print(f"throughput of the full plan: median {median:.1%}, 5th percentile {low:.1%}, worst {worst:.1%}; ", end="")
    print(f"{follows} below 90 %, where a full plan follows")
    for name, cpu, total in (
        ("light", [one.light_cpu_s for one in losses], sum(one.light_moved for one in light)),
        ("full", [one.full_cpu_s for one in losses], sum(one.full_moved for one in light)),
    ):
        print(f"{name:>5}: planned in median {quantile(cpu, 0.5) * 1e3:.0f} ms, ", end="")
        print(f"95th percentile {quantile(cpu, 0.95) * 1e3:.0f} ms; moves {total / 1e6:.0f} MB in all")
    return int(median < 0.95 or low < 0.9)


if __name__ == "__main__":
    sys.exit(main())
