"""The models of the paper, and two language models, train on three devices and equal one process (float64)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.support import cluster, jobs, reference

from asteroid_core.spec import JobSpec

PICTURES = {"source": "digits", "options": {"size": 64, "channels": 3}, "validation": 0.002}
SHAPES = {
    "mobilenet-v2": "a:4 | b:4 | c:4",
    "efficientnet-b1": "a:4 | b:1 c:3",
    "resnet-50": "a:4 | b:4 | c:4",
    "bert-small": "a:4 | b:2 c:2",
    "bert-small-mlm": "a:4 | b:4 | c:4",
    "gpt2-mini": "a:3 b:1 | c:4",
}


def _data(model: str, directory: Path) -> dict[str, Any]:
    if model in ("bert-small-mlm", "gpt2-mini"):
        return {"options": {"length": 64}, "validation": 0.01}
    if model == "bert-small":
        # Handwritten digits as rows of 64 tokens, one a pixel: 17 grey values, ten classes.
        raw = load_digits()
        path = directory / "tokens.npz"
        np.savez(path, x=raw.data.astype(np.int64), y=raw.target.astype(np.int64))
        return {"source": str(path), "options": {}, "validation": 0.002}
    return PICTURES


def _job(model: str, directory: Path) -> JobSpec:
    data = _data(model, directory)
    if "options" in data and model in ("bert-small-mlm", "gpt2-mini"):
        data["options"]["task"] = "masked-bytes" if model.endswith("mlm") else "next-byte"
    options = {"vocabulary": 17} if model == "bert-small" else {}
    return jobs.job(model, options, data=data, train={"rounds": 5, "batch": 8, "validate_every": 5})


@pytest.mark.slow
@pytest.mark.parametrize("model", SHAPES)
def test_five_rounds_equal_one_process(model: str, tmp_path: Path) -> None:
    imports = jobs.imported(_job(model, tmp_path))
    plan = jobs.plan(imports, SHAPES[model])
    outcome = cluster.run(imports, plan)
    wanted, losses = reference.train(imports, plan)
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(outcome.losses(), losses, rtol=1e-9)
    assert max(reference.distance(outcome.state, wanted)) < 1e-9
