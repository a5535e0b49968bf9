"""Workers, supervisors, the coordinator and the broker die at random moments: the weights are those of a quiet run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from safetensors.numpy import load_file
from tests.support import jobs, reference
from tests.support.chaos import Chaos, surviving

from asteroid_core.spec import load_job

SEEDS = int(os.environ.get("ASTEROID_SEEDS", "5"))
FIRST = int(os.environ.get("ASTEROID_FIRST_SEED", "1"))

JOB = """
[model]
name = "mlp"

[data]
source = "digits"
validation = 0.1

[train]
rounds = 500
batch = 16
micro_batch = 4
dtype = "float64"
validate_every = 100

[optimizer]
kind = "sgd"
lr = 0.02
momentum = 0.9
clip_norm = 1.0

[plan]
all_devices = true
stages = {stages}

[checkpoint]
every = 50

[replication]
every = 5
"""


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    with Chaos(tmp_path_factory.mktemp("chaos")) as made:
        yield made


@pytest.mark.timeout(420)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_whatever_dies_the_weights_are_the_same(seed: int, chaos: Chaos) -> None:
    name = f"seed-{seed}"
    job = chaos.directory / f"{name}.toml"
    job.write_text(JOB.format(stages=2 + seed % 3))
    chaos.begin(seed)
    state = chaos.train(job, strikes=4)
    report = chaos.report(name)
    print(report)
    assert state["completed"] == state["rounds"] == 500, report
    history = surviving(chaos.events(name), 500)
    assert (set(history), set(history.values())) == (set(range(500)), {1}), report
    imports = jobs.imported(load_job(job))
    wanted, _ = reference.train(imports, jobs.plan(imports, "a:8"))
    far = max(reference.distance(dict(load_file(state["model_file"])), wanted))
    assert far < 1e-9, f"{far}\n{report}"
