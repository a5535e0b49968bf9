"""What snapshots cost: time of a round and memory, with replication and without, on emulated clusters (root only).

    python -m bench.replication [--agents 3] [--models mobilenet-v2,bert-small] [--repeat 3] [--json FILE]

The same job by the same plan, once with snapshots as often as the product chooses (``every = "auto"``, budget 5 %) and
once with none (``every = 0``), in turns. A run is timed over whole intervals between snapshots, so that each pays for
all of its cost: mean seconds of a round, median and spread over the runs. Memory is the largest that each worker's
process ever had resident (VmHWM), beside what the plan accounts for. About ten minutes a model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.emulated import MODELS, BenchError, Site, as_fixed, running, spread
from tests.testbed.cluster import remove_leftovers, unavailable
from tests.testbed.network import processes_in

BUDGET = 0.05
WARM = 3
"""Rounds that are left out."""
LEAST = 20
"""Rounds that are timed at least."""
PLAN_S, RUN_S = 900.0, 1800.0


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        agents: devices.
        model: name.
        every: rounds between snapshots; 0: none.
        round_s: mean over the rounds that were timed.
        accounted: megabytes that the plan accounts for on each device.
        measured: megabytes that each device's worker had at most.
    """

    agents: int
    model: str
    every: int
    round_s: float
    accounted: dict[str, float]
    measured: dict[str, float]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def peak_mb(site: Site, device: str) -> float:
    """Largest resident memory that the device's worker has had so far."""
    peaks = [0.0]
    for pid in processes_in(site.bed.hosts[device].namespace):
        try:
            if b"asteroid_agent.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                status = Path(f"/proc/{pid}/status").read_text()
                peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6)
        except (OSError, IndexError):
            continue  # it has ended meanwhile
    return max(peaks)


def run(site: Site, agents: int, model: str, plan: str, replication: str, interval: int) -> Run:
    """Train for whole intervals."""
    path = site.job_file(model, rounds=100_000, plan=plan, replication=replication)
    told = site.submit(path)
    site.until(told, partial(told.reached, "running"), "running", PLAN_S)
    summary = told.plans[-1]
    interval = interval or summary.snapshot_every or 1
    rounds = interval * -(-LEAST // interval)
    site.until(told, lambda: len(told.steps) > WARM + rounds, "trained", RUN_S)
    measured = {device: peak_mb(site, device) for device in summary.plan.devices}
    site.stop(path)
    took = (told.steps[WARM + rounds] - told.steps[WARM]) / rounds
    accounted = {m.device: m.need_mb for m in summary.memory}
    done = Run(agents, model, summary.snapshot_every, took, accounted, measured)
    say(f"{agents} agents, {model}, snapshots every {done.every} rounds: {took:.3f} s a round over {rounds} rounds")
    return done


def both(site: Site, agents: int, model: str, repeat: int) -> list[Run]:
    """With and without, in turns."""
    told = site.submit(site.job_file(model, rounds=10, plan=f"stages = {min(3, agents)}"), "plan")
    site.until(told, partial(told.reached, "done"), "planned", PLAN_S)
    plan = f'fixed = "{as_fixed(told.plans[-1])}"'
    runs: list[Run] = []
    for _ in range(repeat):
        runs.append(run(site, agents, model, plan, f"budget = {BUDGET}", 0))
        runs.append(run(site, agents, model, plan, "every = 0", runs[-1].every))
    return runs


def report(runs: Sequence[Run]) -> None:
    for agents, model in dict.fromkeys((run.agents, run.model) for run in runs):
        mine = [run for run in runs if (run.agents, run.model) == (agents, model)]
        on, off = [r for r in mine if r.every], [r for r in mine if not r.every]
        if not on or not off:
            print(f"{agents} agents, {model}: no snapshots fit, nothing to compare")
            continue
        costs = [100 * (a.round_s / b.round_s - 1) for a, b in zip(on, off, strict=True)]
        base = 100 * (max(r.round_s for r in off) / min(r.round_s for r in off) - 1)
        print(
            f"{agents} agents, {model}: snapshots every {on[0].every} rounds cost {spread(costs)} % of a round, "
            f"wanted at most {100 * BUDGET:g} %; runs without differ by {base:.1f} % among themselves"
        )
        for device, accounted in sorted(on[0].accounted.items()):
            peak = statistics.median(r.measured[device] for r in on)
            bare = statistics.median(r.measured[device] for r in off)
            print(
                f"  {device}: at most {peak:.0f} MB with snapshots, {bare:.0f} MB without; "
                f"accounted {accounted:.0f} MB, measured / accounted {peak / accounted:.2f}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="3")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if (why := unavailable()) is not None:
        print(f"{why}.", file=sys.stderr)
        return 2
    remove_leftovers()
    runs: list[Run] = []
    failed = 0
    for agents in map(int, given.agents.split(",")):
        for model in given.models.split(","):
            try:
                with running(agents) as site:
                    runs += both(site, agents, model, given.repeat)
            except BenchError as error:
                failed += 1
                say(f"{agents} agents, {model}: {error}")
            if given.json:
                given.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
    report(runs)
    print(f"repeat: python -m bench.replication {' '.join(sys.argv[1:])}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
