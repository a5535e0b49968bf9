"""Predicted beside measured round time, on emulated clusters of unequal devices (root only).

    python -m bench.predicted [--clusters A,B,C] [--models mobilenet-v2,bert-small] [--planners asteroid,dp]

Each cluster is agents in network namespaces with shaped links and CPU quotas, a broker, a coordinator (tests/testbed);
the jobs are the product's: measured profiles, planned by each planner, trained over MQTT. Predicted is the simulated
round of the plan in force, measured the median of the rounds that the coordinator saw; the spread is that of
``--repeats`` trainings. Two planners with the same plan are run once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from tests.testbed.cluster import COORDINATOR, DeviceSpec, Testbed, remove_leftovers, unavailable

from asteroid_coordinator.planner import PLANNERS


@dataclass(frozen=True)
class Emulated:
    """One cluster.

    Attributes:
        devices: and their links and quotas; all quotas together leave room for broker and coordinator on two cores.
        broker_mbit: speed of the broker's link.
    """

    devices: tuple[DeviceSpec, ...]
    broker_mbit: float


CLUSTERS = {
    "A": Emulated((DeviceSpec("fast", 100, 0.5), DeviceSpec("mid", 100, 0.3), DeviceSpec("slow", 100, 0.2)), 1000),
    "B": Emulated(
        (
            DeviceSpec("fast", 200, 0.4),
            DeviceSpec("mid-1", 100, 0.25),
            DeviceSpec("mid-2", 100, 0.25),
            DeviceSpec("slow", 50, 0.15),
        ),
        200,
    ),
    "C": Emulated(
        (
            DeviceSpec("fast", 1000, 0.35),
            DeviceSpec("mid-1", 1000, 0.25),
            DeviceSpec("mid-2", 1000, 0.2),
            DeviceSpec("slow-1", 1000, 0.15),
            DeviceSpec("slow-2", 1000, 0.15),
        ),
        1000,
    ),
}
JOB = """
[model]
name = "{model}"

[data]
source = "{source}"
validation = 0.01
{options}
[train]
rounds = {rounds}
batch = 16
validate_every = 1000

[optimizer]
kind = "sgd"
lr = 0.01

[plan]
planner = "{planner}"
layers = 20

[checkpoint]
every = 1000
"""
MODELS = ("mobilenet-v2", "bert-small")
NOT_RUN = ("exhaustive",)
"""Planners that are left out unless named."""
JOB_S = 1200.0
"""Seconds that one job may take; what takes longer is said and left out."""
ROUNDS_S = 240.0
"""Seconds that the rounds of one job shall take at most: slow plans get fewer rounds."""
FEWEST = 4
"""Rounds of a job at least."""


@dataclass(frozen=True)
class Row:
    """One job.

    Attributes:
        cluster: letter.
        model: name.
        planner: name, or several that gave the same plan.
        plan: in short.
        predicted_s: of a round.
        measured_s: medians of the trainings.
    """

    cluster: str
    model: str
    planner: str
    plan: str
    predicted_s: float
    measured_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / statistics.median(self.measured_s)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def job_file(bed: Testbed, model: str, planner: str, rounds: int) -> Path:
    """Write a job of so many rounds; its data lies in the testbed's directory."""
    source, options = "digits", "options = { size = 64, channels = 3 }"
    if model == "bert-small":  # the digits as rows of 64 tokens, one a pixel: 17 grey values, ten classes
        tokens = bed.directory / "tokens.npz"
        raw = load_digits()
        np.savez(tokens, x=raw.data.astype(np.int64), y=raw.target.astype(np.int64))
        source, options = str(tokens), ""
    path = bed.directory / f"{model}-{planner}.toml"
    path.write_text(JOB.format(model=model, source=source, options=options, rounds=rounds, planner=planner))
    return path


def asteroid(bed: Testbed, *words: str) -> tuple[dict[str, Any], str]:
    """Run the command line; returns its JSON, or an empty one and what it said."""
    try:
        done = bed.run(COORDINATOR, bed.cli(*words, "--json"), timeout=JOB_S)
    except subprocess.TimeoutExpired:
        return {}, f"not done after {JOB_S:.0f} s"
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("asteroid:")]
        return {}, (said or done.stderr.splitlines() or ["it said nothing"])[-1]
    return json.loads(done.stdout), ""


def run_cluster(letter: str, models: Sequence[str], planners: Sequence[str], rounds: int, repeats: int) -> list[Row]:
    """Train every model by every planner on one cluster."""
    cluster, rows = CLUSTERS[letter], []
    with Testbed(cluster.devices, broker_mbit=cluster.broker_mbit) as bed:
        bed.start_broker()
        for device in cluster.devices:
            bed.start_agent(device.name)
        for model in models:
            seen: dict[str, str] = {}
            for planner in planners:
                job = str(job_file(bed, model, planner, rounds))
                planned, why = asteroid(bed, "plan", job)
                if not planned:
                    say(f"{letter} {model} {planner}: {why}")
                    continue
                short = planned["text"]
                if short in seen:
                    say(f"{letter} {model} {planner}: the plan of {seen[short]}")
                    continue
                seen[short] = planner
                fewer = max(FEWEST, min(rounds, int(ROUNDS_S / planned["round_s"])))
                job = str(job_file(bed, model, planner, fewer))
                measured, predicted = [], 0.0
                for _ in range(repeats):
                    result, why = asteroid(bed, "train", job)
                    if not result:
                        say(f"{letter} {model} {planner}: {why}")
                        break
                    measured.append(result["measured_round_s"])
                    predicted = result["predicted_round_s"]
                if measured:
                    row = Row(letter, model, planner, short, predicted, tuple(measured))
                    say(f"{letter} {model} {planner}: {predicted:.2f} s predicted, {row.ratio:.2f} of what it took")
                    rows.append(row)
    return rows


def report(rows: Sequence[Row]) -> None:
    print(f"{'':2}{'model':14}{'planner':16}{'predicted':>10}{'measured':>10}{'spread':>14}{'ratio':>7}  plan")
    for row in rows:
        middle = statistics.median(row.measured_s)
        spread = f"{min(row.measured_s):.2f}-{max(row.measured_s):.2f}"
        print(
            f"{row.cluster:2}{row.model:14}{row.planner:16}{row.predicted_s:9.2f}s{middle:9.2f}s{spread:>14}"
            f"{row.ratio:7.2f}  {row.plan}"
        )
    errors = [abs(row.ratio - 1) for row in rows]
    print(f"predicted / measured - 1: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--planners", default=",".join(name for name in PLANNERS if name not in NOT_RUN))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if (why := unavailable()) is not None:
        print(f"{why}.", file=sys.stderr)
        return 2
    remove_leftovers()
    models, planners = arguments.models.split(","), arguments.planners.split(",")
    print(f"python -m bench.predicted {' '.join(sys.argv[1:])}")
    rows: list[Row] = []
    for letter in arguments.clusters.split(","):
        rows += run_cluster(letter, models, planners, arguments.rounds, arguments.repeats)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    report(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
