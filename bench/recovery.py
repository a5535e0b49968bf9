"""Time of a recovery, replay beside heavy rescheduling, on emulated clusters at 100 Mbit/s (root only).

    python -m bench.recovery [--agents 3,5,8] [--models mobilenet-v2,bert-small] [--repeat 3] [--json FILE]

For each cluster and model, the product's planner makes one plan. Every run trains by that plan and, when the same round
is completed, SIGKILLs all processes of the same device: of those that have a stage to themselves, the one with the
heaviest stage, so that weights are missing. The coordinator's event ``recovered`` has the phases; how long the loss
took to be noticed is measured here. ``heavy`` plans anew from the profiles, collects all weights at the coordinator and
hands every device its whole stage; ``replay`` is the product's way. The two take turns.

A run takes about a minute, so all of it about an hour and a half; three agents with one model, ten minutes.
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
from typing import Any

from bench.emulated import BYTES_PER_S, MODELS, BenchError, Site, Told, as_fixed, running, spread
from tests.testbed.cluster import remove_leftovers, unavailable

from asteroid_core.wire.messages import PlanSummary

WAYS = ("replay", "heavy")
WANTED = {"bert-small": 14.0, "mobilenet-v2": 5.0}
"""Heavy over replay, detection excluded."""
TRANSFER, REST_S = 1.3, 1.0
"""Wanted of a replay: transfer over what the link needs for the bytes, and seconds of all the rest."""
EVERY = 4
"""Rounds between snapshots."""
AFTER = 2
"""Completed rounds between the durable round and the loss."""
PLAN_S, ROUND_S, RECOVERY_S = 900.0, 600.0, 300.0
PHASES = ("halt_s", "plan_s", "build_s", "move_s", "restore_s", "again_s")


@dataclass(frozen=True)
class Run:
    """One failure.

    Attributes:
        agents: devices before it.
        model: name.
        way: replay or heavy.
        plan: before it.
        victim: device that was killed.
        completed: rounds then.
        after: plan after it.
        detect_s: from the kill until the coordinator said that the device is lost.
        figures: of the event ``recovered``.
    """

    agents: int
    model: str
    way: str
    plan: str
    victim: str
    completed: int
    after: str
    detect_s: float
    figures: dict[str, Any]

    @property
    def resumed_s(self) -> float:
        """From the loss noticed to the first sample of the resumed round."""
        return float(self.figures["resumed_s"])

    @property
    def transfer(self) -> float | None:
        """Time of the transfer over that of its bytes on the shared link."""
        ideal = self.figures["moved_bytes"] / BYTES_PER_S
        return self.figures["move_s"] / ideal if ideal > 0.01 else None

    @property
    def rest_s(self) -> float:
        """What it took beside the transfer."""
        return self.resumed_s - float(self.figures["move_s"])


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def plan_of(site: Site, model: str, agents: int) -> PlanSummary:
    """The planner's plan if a device has a stage to itself in it and others go on; else one with a stage each."""
    for wish in ("all_devices = true", f"stages = {agents}"):
        told = site.submit(site.job_file(model, rounds=10, plan=wish), "plan")
        site.until(told, partial(told.reached, "done"), "planned", PLAN_S)
        summary = told.plans[-1]
        if len(summary.plan.stages) > 1 and any(len(stage.shares) == 1 for stage in summary.plan.stages):
            return summary
    raise BenchError(f"no plan of {agents} devices has a stage of one device: {summary.text}")


def victim_of(told: Told) -> str:
    """The device whose loss takes the only working copy of the most weights."""
    alone = [stage for stage in told.plans[-1].plan.stages if len(stage.shares) == 1]
    return max(alone, key=lambda stage: (told.loaded.get(stage.leader, 0), stage.lo)).leader


def run(site: Site, model: str, way: str, summary: PlanSummary, agents: int) -> Run:
    """Train, lose a device, recover."""
    replication = f'every = {EVERY}\nrecovery = "{way}"\n'
    path = site.job_file(model, rounds=100_000, plan=f'fixed = "{as_fixed(summary)}"', replication=replication)
    told = site.submit(path)
    site.until(told, partial(told.reached, "running"), "running", PLAN_S)
    site.until(
        told,
        lambda: told.state is not None and told.state.durable >= EVERY and told.state.completed >= EVERY + AFTER,
        "durable",
        ROUND_S,
    )
    assert told.state is not None
    victim = victim_of(told)
    completed = told.state.completed
    killed = site.bed.kill(victim)
    site.until(told, lambda: told.event("recovered"), "recovered", RECOVERY_S)
    lost, over = told.event("device-lost"), told.event("recovered")
    assert lost is not None
    assert over is not None
    site.stop(path)
    site.start_agent(victim)
    done = Run(
        agents, model, way, summary.text, victim, completed, told.plans[-1].text, lost[0] - killed, dict(over[1].data)
    )
    say(f"{agents} agents, {model}, {way}: noticed in {done.detect_s:.2f} s; {over[1].text}; {done.after}")
    return done


def middle(runs: Sequence[Run], name: str) -> float:
    return statistics.median(float(run.figures[name]) for run in runs)


def report(runs: Sequence[Run]) -> None:
    print(f"{'':24}{'noticed':>9}" + "".join(f"{name[:-2]:>9}" for name in PHASES) + f"{'MB':>8}  resumed after")
    for agents, model in dict.fromkeys((run.agents, run.model) for run in runs):
        mine = [run for run in runs if (run.agents, run.model) == (agents, model)]
        print(f"{agents} agents, {model}: {mine[0].plan}; {mine[0].victim} is lost")
        ways = {way: [run for run in mine if run.way == way] for way in WAYS}
        for way, some in ways.items():
            if not some:
                continue
            cells = "".join(f"{middle(some, name):8.2f}s" for name in PHASES)
            noticed = statistics.median(run.detect_s for run in some)
            moved = middle(some, "moved_bytes") / 1e6
            resumed = spread([run.resumed_s for run in some])
            print(f"  {way:22}{noticed:8.2f}s{cells}{moved:8.1f}  {resumed} s by {some[-1].after}")
        if all(ways.values()):
            ratios(model, ways["replay"], ways["heavy"])


def ratios(model: str, light: Sequence[Run], heavy: Sequence[Run]) -> None:
    def both(name: str, of: list[tuple[float, float]], wanted: str = "") -> None:
        print(f"  {name}: {spread([b / a for a, b in of])}{wanted}")

    pairs = list(zip(light, heavy, strict=False))
    wanted = f", wanted at least {WANTED[model]:g}" if model in WANTED else ""
    both("heavy / replay, from loss noticed", [(a.resumed_s, b.resumed_s) for a, b in pairs], wanted)
    both("heavy / replay, from the kill", [(a.detect_s + a.resumed_s, b.detect_s + b.resumed_s) for a, b in pairs])
    factors = [run.transfer for run in light if run.transfer is not None]
    if factors:
        print(f"  replay, transfer / (bytes / link): {spread(factors)}, wanted at most {TRANSFER:g}")
    rest = spread([run.rest_s for run in light])
    print(f"  replay without the transfer: {rest} s, wanted at most {REST_S:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="3,5,8")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if (why := unavailable()) is not None:
        print(f"{why}.", file=sys.stderr)
        return 2
    remove_leftovers()
    runs: list[Run] = []
    ways, failed = given.ways.split(","), 0
    for agents in map(int, given.agents.split(",")):
        for model in given.models.split(","):
            try:
                with running(agents) as site:
                    summary = plan_of(site, model, agents)
                    say(f"{agents} agents, {model}: {summary.text}")
                    for number in range(given.repeat):
                        for way in ways if number % 2 == 0 else reversed(ways):
                            runs.append(run(site, model, way, summary, agents))
                            if given.json:
                                given.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))
            except BenchError as error:
                failed += 1
                say(f"{agents} agents, {model}: {error}")
    report(runs)
    print(f"repeat: python -m bench.recovery {' '.join(sys.argv[1:])}".rstrip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
