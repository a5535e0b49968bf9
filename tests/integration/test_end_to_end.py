"""Real agents, a real broker and the command line: train, lose a device, lose the coordinator, go on, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_model
from tests.support import jobs, reference
from tests.support.site import Site, environment, site, wait_until

from asteroid_coordinator.model.zoo import choose
from asteroid_core.spec import load_job

JOB = """
[model]
name = "mlp"

[data]
source = "digits"
validation = 0.1
{owner}

[train]
rounds = {rounds}
batch = 16
micro_batch = 8
dtype = "float64"
validate_every = 50

[optimizer]
kind = "sgd"
lr = 0.02
momentum = 0.9
clip_norm = 1.0

[plan]
all_devices = true
stages = 2

[checkpoint]
every = 5
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site"), ("pi-a", "pi-b", "pi-c")) as made:
        yield made


def _wanted(path: Path) -> dict[str, np.ndarray]:
    """Weights of one process that trains the same job; no batch norm, so the plan does not matter."""
    imports = jobs.imported(load_job(path))
    state, _ = reference.train(imports, jobs.plan(imports, "a:8"))
    return state


def _check(model_file: str, job: Path) -> None:
    assert max(reference.distance(dict(load_file(model_file)), _wanted(job))) < 1e-9


def _rounds(name: str, done: Site, kind: str = "saved") -> int:
    answer = done.run("status", name, "--json")
    return int(answer.json.get(kind, 0)) if answer.code == 0 else 0


def test_train_and_export(three: Site, tmp_path: Path) -> None:
    job = three.job("plain", JOB.format(rounds=30, owner=""))
    done = three.run("train", job, "--json")
    assert done.code == 0, done.err
    result = done.json
    assert (result["phase"], result["completed"], result["generation"]) == ("done", 30, 1)
    assert result["accuracy"] is not None
    _check(result["model_file"], job)

    out = tmp_path / "plain.safetensors"
    exported = three.run("export", "plain", "-o", out)
    assert exported.code == 0, exported.err
    imports = jobs.imported(load_job(job))
    module = choose(imports.spec.model, imports.source, seed=5).module.to(torch.float64)
    load_model(module, str(out), strict=True)

    listed = three.run("jobs", "--json")
    assert [j["phase"] for j in listed.json if j["job"] == "plain"] == ["done"]


def test_data_that_lies_on_a_device(three: Site) -> None:
    job = three.job("remote", JOB.format(rounds=10, owner='owner = "pi-b"'))
    done = three.run("train", job, "--json")
    assert done.code == 0, done.err
    _check(done.json["model_file"], three.job("local", JOB.format(rounds=10, owner="")))


def test_a_coordinator_killed_in_the_middle_is_resumed(three: Site) -> None:
    job = three.job("crash", JOB.format(rounds=400, owner=""))
    log = three.directory / "crash.log"
    with log.open("w") as err:
        process = subprocess.Popen(
            three.command("train", job),
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=environment(),
            start_new_session=True,
        )
    try:
        wait_until(lambda: "round 20 is saved" in log.read_text(), f"no checkpoint: {log}", 120)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Without a coordinator the story is read from the state directory.
    assert 20 <= _rounds("crash", three) < 400
    done = three.run("resume", "crash", "--json")
    assert done.code == 0, done.err
    assert done.json["phase"] == "done"
    assert done.json["generation"] >= 2
    _check(done.json["model_file"], job)


def test_a_device_killed_in_the_middle_changes_no_weight(tmp_path: Path) -> None:
    with site(tmp_path, ("pi-a", "pi-b", "pi-c")) as three:
        job = three.job("loss", JOB.format(rounds=400, owner=""))
        log = tmp_path / "loss.log"
        with log.open("w") as err:
            process = subprocess.Popen(
                three.command("train", job, "--json"), stdout=subprocess.PIPE, stderr=err, text=True, env=environment()
            )
        wait_until(lambda: "round 20 is saved" in log.read_text(), f"no checkpoint: {log}", 120)
        three.kill_agent("pi-b")
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 0, log.read_text()
        result = json.loads(out)
        assert (result["phase"], result["generation"]) == ("done", 2)
        assert "pi-b" not in result["plan"]
        _check(result["model_file"], job)


BY_HAND = """
[plan]
fixed = "{plan}"
all_devices = true

[checkpoint]
every = 100000

[replication]
every = 5
recovery = "{recovery}"
"""
ALONE = "0-3 pi-a:8 | 4-6 pi-b:8 | 7-9 pi-c:8"
GROUP = "0-4 pi-a:4 pi-b:4 | 5-9 pi-c:8"


@pytest.mark.parametrize(
    ("plan", "recovery", "kind"),
    [(ALONE, "replay", "replay"), (GROUP, "replay", "regroup"), (ALONE, "heavy", "replay")],
    ids=["a stage", "a member of a group", "a stage, heavy"],
)
def test_a_loss_before_any_checkpoint_is_made_good_by_the_other_devices(
    tmp_path: Path, plan: str, recovery: str, kind: str
) -> None:
    text = JOB.format(rounds=600, owner="").split("[plan]")[0] + BY_HAND.format(plan=plan, recovery=recovery)
    with site(tmp_path, ("pi-a", "pi-b", "pi-c")) as three:
        job = three.job("early", text)
        log = tmp_path / "early.log"
        with log.open("w") as err:
            process = subprocess.Popen(
                three.command("train", job, "--json"), stdout=subprocess.PIPE, stderr=err, text=True, env=environment()
            )
        wait_until(lambda: _rounds("early", three, "durable") > 0, f"nothing durable: {log}", 120)
        three.kill_agent("pi-b")
        out, _ = process.communicate(timeout=180)
        story = log.read_text()
        assert process.returncode == 0, story
        result = json.loads(out)
        assert (result["phase"], result["generation"]) == ("done", 2)
        assert "is saved" not in story.split("pi-b is lost")[0]
        if kind == "regroup":
            assert "no weights move, no round is lost" in story or "steps first" in story
        else:
            assert "back to round 0" not in story
            assert "back to round" in story
        assert ("from coordinator" in story) == (recovery == "heavy")
        _check(result["model_file"], job)
