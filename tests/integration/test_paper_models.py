"""The paper's four models train five rounds on three real agents, and equal one process (float64)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits
from tests.support import jobs, reference
from tests.support.site import Site, site

from asteroid_core.spec import load_job

JOB = """
[model]
name = "{model}"
{options}

[data]
{data}

[train]
rounds = 5
batch = 8
micro_batch = 4
dtype = "float64"

[optimizer]
lr = 0.01
momentum = 0.9

[plan]
layers = 12
fixed = "0-3 pi-a:4 | 4-7 pi-b:1 pi-c:3 | 8-11 pi-d:4"
"""
PICTURES = 'source = "digits"\nvalidation = 0.002\noptions = { size = 64, channels = 3 }'
MODELS = ("mobilenet-v2", "efficientnet-b1", "resnet-50", "bert-small")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site"), ("pi-a", "pi-b", "pi-c", "pi-d")) as made:
        yield made


def _data(model: str, directory: Path) -> str:
    if model != "bert-small":
        return PICTURES
    # Handwritten digits as rows of 64 tokens, one a pixel: 17 grey values, ten classes.
    raw, path = load_digits(), directory / "tokens.npz"
    np.savez(path, x=raw.data.astype(np.int64), y=raw.target.astype(np.int64))
    return f'source = "{path}"\nvalidation = 0.002'


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("agents", [3, 4])
def test_five_rounds_on_real_agents_equal_one_process(model: str, agents: int, four: Site) -> None:
    options = "options = { vocabulary = 17 }" if model == "bert-small" else ""
    text = JOB.format(model=model, options=options, data=_data(model, four.directory))
    if agents == 3:
        text = text.replace("4-7 pi-b:1 pi-c:3", "4-7 pi-b:4")
    path = four.job(f"{model}-{agents}", text)
    done = four.run("train", path, "--json", timeout=600)
    assert done.code == 0, done.err
    assert np.isfinite(done.json["loss"])
    imports = jobs.imported(load_job(path))
    shape = "pi-a:4 | pi-b:4 | pi-d:4" if agents == 3 else "pi-a:4 | pi-b:1 pi-c:3 | pi-d:4"
    wanted, _ = reference.train(imports, jobs.plan(imports, shape, cuts=(4, 8)))
    assert max(reference.distance(dict(load_file(done.json["model_file"])), wanted)) < 1e-9
