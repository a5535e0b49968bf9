"""``python -m tests.simulation SEED`` runs one schedule and shows it; ``--schedules N [--from SEED]`` runs many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.schedule import run


def main() -> int:
    """See the module's header."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="run this schedule and show its events")
    parser.add_argument("--schedules", type=int, default=0, help="run so many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed")
    parser.add_argument("--lines", type=int, default=400, help="events to show")
    given = parser.parse_args()
    if given.seed is not None:
        outcome = run(given.seed)
        print(outcome.report(given.lines))
        for error in outcome.errors:
            traceback.print_exception(error)
        print(f"{outcome.seconds:.1f} virtual seconds, {outcome.steps} events, {outcome.generations} generations")
        return 1 if outcome.violations else 0
    begin, bad, steps, generations = time.monotonic(), [], 0, 0
    for seed in range(given.first, given.first + given.schedules):
        outcome = run(seed)
        steps, generations = steps + outcome.steps, generations + outcome.generations
        if outcome.violations:
            bad.append(seed)
            print(f"seed {seed}: {outcome.violations[0]}", flush=True)
    print(
        f"{given.schedules} schedules in {time.monotonic() - begin:.0f} s, {steps} events, "
        f"{generations} generations, {len(bad)} violations{': ' + str(bad) if bad else ''}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
