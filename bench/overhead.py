"""What one agent costs over a plain torch loop: MobileNetV2, 64x64, batch 16, one core each.

Plain loop and agent take turns in one run. The agent's figures are the whole rounds that it reports: waiting for
samples, forward, backward, vote, step.

    python bench/overhead.py [--repeats 3] [--rounds 30]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.site import Site, environment, site  # noqa: E402

WARM = 5
"""Rounds of each turn that are left out: caches and allocators warm up."""
JOB = """
name = "{name}"
[model]
name = "mobilenet-v2"
[data]
source = "digits"
validation = 0.0
options = {{ size = 64, channels = 3 }}
[train]
rounds = {rounds}
batch = 16
micro_batch = 16
[optimizer]
kind = "sgd"
lr = 0.01
momentum = 0.9
[checkpoint]
every = 1000000
"""
PLAIN = """
import json, sys, time
import torch
from asteroid_coordinator.model.zoo import choose
from asteroid_core.data.opening import open_source
from asteroid_core.spec import DataSpec, ModelSpec
torch.set_num_threads(1)
source = open_source(DataSpec(source="digits", options={"size": 64, "channels": 3}))
module = choose(ModelSpec(name="mobilenet-v2"), source, 0).module.train()
optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
seconds = []
for number in range(int(sys.argv[1])):
    images, targets = source.batch(torch.arange(number * 16, number * 16 + 16).numpy() % len(source))
    begin = time.perf_counter()  # reading and enlarging pictures is not counted: the coordinator does it for the agent
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(images[0])), torch.from_numpy(targets))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begin)
print(json.dumps(seconds))
"""


def plain(rounds: int) -> list[float]:
    command = [sys.executable, "-c", PLAIN, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    return [float(s) for s in json.loads(done.stdout)[WARM:]]


def agent(made: Site, turn: int, rounds: int) -> list[float]:
    """Train one job and take the seconds of each round from its metrics."""
    from asteroid_coordinator.client import Client
    from asteroid_coordinator.settings import Settings
    from asteroid_core.login import parse_address
    from asteroid_core.wire.messages import Metrics

    name = f"overhead-{turn}"
    host, port, _ = parse_address(made.address)
    job = made.job(name, JOB.format(name=name, rounds=rounds))
    seconds = []
    with Client(Settings(host=host, port=port)) as client:
        client.watch(name)
        with made.running("train", job, "--quiet") as process:
            while process.poll() is None:
                seconds += [
                    h.message.seconds
                    for h in client.follow(0.5)
                    if isinstance(h.message, Metrics) and h.message.seconds
                ]
            time.sleep(0.5)
    return seconds[WARM:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as directory, site(Path(directory), ("one",)) as made:
        for turn in range(given.repeats):
            a = plain(given.rounds)
            b = agent(made, turn, given.rounds)
            c = plain(given.rounds)
            base, ours = median(a + c), median(b)
            ratios.append(ours / base - 1)
            print(
                f"turn {turn}: plain {base * 1e3:.1f} ms, agent {ours * 1e3:.1f} ms, overhead {ratios[-1] * 100:+.1f} %"
            )
    spread = f"{min(ratios) * 100:+.1f} .. {max(ratios) * 100:+.1f}"
    print(f"overhead of one agent: median {median(ratios) * 100:+.1f} % ({spread}), wanted at most 5 %")
    print(f"repeat: python bench/overhead.py --repeats {given.repeats} --rounds {given.rounds}")


if __name__ == "__main__":
    main()
