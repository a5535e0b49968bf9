"""What the torch backend measures and keeps."""

from __future__ import annotations

import numpy as np
from tests.support import jobs

from asteroid_agent.backend.base import Backend
from asteroid_agent.backend.torch_backend import TorchBackend


def _whole(model: str, dtype: str = "float32") -> TorchBackend:
    imports = jobs.imported(jobs.job(model, train={"dtype": dtype}))
    program = imports.model.stage(0, len(imports.model.layers))
    return TorchBackend(program, imports.model.all_state(), imports.spec.optimizer)


def test_kept_memory_grows_with_the_rows_and_the_element_size() -> None:
    one, two = _whole("mlp").kept_bytes(1), _whole("mlp").kept_bytes(2)
    assert 0 < one < two <= 2 * one
    # at least the inputs of the four linear layers: 64 pixels, three times 64 hidden values
    assert two >= 2 * 4 * 64 * 4
    assert _whole("mlp", "float64").kept_bytes(2) == 2 * two


def test_measuring_memory_changes_no_state() -> None:
    backend = _whole("cnn")
    before = backend.state()
    assert backend.kept_bytes(4) > 0
    after = backend.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    checked: Backend = backend
    assert checked.squared_norm(()) == 0.0
