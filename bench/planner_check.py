"""How near the planners come to the best plan of all, on random small clusters with mixed memory and links.

    python -m bench.planner_check --instances 2000

prints, for each planner, how much slower than the exhaustive search its plan is: median, 99th percentile, worst, and on
how many instances it found no plan where one fits. The verdicts are those of the simulator. Fails (exit code 1) if
``asteroid`` misses its targets: 1 % at the median, 5 % at the 99th percentile, a plan whenever there is one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from functools import partial
from pathlib import Path

from tests.support.instances import Gap, gap, quantile

PLANNERS = ("asteroid", "asteroid-paper")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.instances)
    gaps: list[Gap] = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for done, one in enumerate(pool.imap_unordered(partial(gap, planners=PLANNERS), seeds, chunksize=5), 1):
            gaps.append(one)
            if done % 100 == 0:
                print(f"{done} of {len(seeds)}", file=sys.stderr)
    fitting = [one for one in gaps if one.best_s is not None]
    print(f"python -m bench.planner_check --instances {arguments.instances} --first {arguments.first}")
    print(f"{len(gaps)} instances, {len(gaps) - len(fitting)} of them fit nowhere")
    print(f"{'planner':16}{'median':>9}{'p90':>9}{'p99':>9}{'worst':>9}{'missed':>9}")
    failed = False
    for name in PLANNERS:
        ratios = [ratio for one in fitting if (ratio := one.ratio(name)) is not None]
        missed = sum(one.missed(name) for one in fitting)
        shown = [quantile(ratios, part) for part in (0.5, 0.9, 0.99, 1.0)]
        print(f"{name:16}" + "".join(f"{(value - 1) * 100:8.2f}%" for value in shown) + f"{missed:9}")
        if name == "asteroid":
            failed = shown[0] > 1.01 or shown[2] > 1.05 or missed > 0
            worst = sorted(fitting, key=lambda one: -(one.ratio("asteroid") or 1.0))[:5]
    print("worst for asteroid: " + ", ".join(f"seed {one.seed} {one.ratio('asteroid') or 0:.3f}" for one in worst))
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in gaps]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
