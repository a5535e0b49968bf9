"""Models become layers and stage programs, or one clear sentence."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import jobs

from asteroid_agent.backend import open_backend
from asteroid_agent.backend.base import SampleKeys
from asteroid_coordinator.importing import Imports, import_job
from asteroid_coordinator.model.cuts import coarsen
from asteroid_coordinator.model.zoo import choose
from asteroid_core.errors import AsteroidError, InputError, ProgramError
from asteroid_core.known_answer import verify
from asteroid_core.program import StageProgram
from asteroid_core.wire.tensor import Tensor

MINE = '''
import torch
from torch import nn


class Skips(nn.Module):
    """Values that live across several cuts, a buffer, a parameter that is used twice."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.second = nn.Linear(64, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("shift", torch.full((width,), 0.5))
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        a = self.first(x.flatten(1))
        b = torch.relu(self.second(a)) * self.scale
        c = torch.relu(self.second(b)) + a + self.shift
        return self.last(c * self.scale + b)


def skips(width=8):
    return Skips(width)


def branches():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def forward(self, x):
            return self.net(x.flatten(1)) if x.sum() > 0 else self.net(-x.flatten(1))

    return Branches()


def no_batch():
    class NoBatch(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def forward(self, x):
            return self.net(x.flatten(1)).sum(0)

    return NoBatch()


def foreign():
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def forward(self, x):
            return torch.fft.fft(self.net(x.flatten(1))).real

    return Foreign()


def nothing():
    return 3


def breaks():
    raise ValueError("not today")
'''


@pytest.fixture(scope="module", autouse=True)
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "models_for_test.py").write_text(MINE)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def _import(name: str, **options: object) -> Imports:
    return import_job(jobs.job(name, dict(options)))


def _chain(imports: Imports, cuts: tuple[int, ...], rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Forward and backward through stages at these cuts: loss, and the gradient of every parameter."""
    edges = [0, *cuts, len(imports.model.layers)]
    state = imports.model.all_state()
    programs = [imports.model.stage(a, b) for a, b in itertools.pairwise(edges)]
    backends = [
        open_backend("torch", p, {t.name: state[t.name] for t in p.tensors}, imports.spec.optimizer, 1)
        for p in programs
    ]
    inputs, targets = imports.source.batch(np.arange(rows))
    keys = SampleKeys(0, np.zeros(rows, np.int64), np.arange(rows))
    flow = [Tensor.of_numpy(x) for x in inputs]
    for backend in backends[:-1]:
        flow = backend.forward(0, flow, train=True, samples=keys)
    scores = backends[-1].forward_loss(0, flow, Tensor.of_numpy(targets), float(rows), train=True, samples=keys)
    grads: list[Tensor] | None = None
    for backend in reversed(backends):
        grads = backend.backward(0, grads)
    out: dict[str, np.ndarray] = {}
    for program, backend in zip(programs, backends, strict=True):
        own = [t for t in program.params if not t.shared]
        vector, at = backend.gradient(0), 0
        for spec in own:
            size = int(np.prod(spec.shape))
            out[spec.name] = vector[at : at + size].reshape(spec.shape)
            at += size
        for spec in program.params:
            if spec.shared:
                out[spec.name] = out.get(spec.name, 0) + backend.gradient(spec.name).reshape(spec.shape)
    return np.array(scores.loss), out


def _plain(imports: Imports, rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same with the user's own module."""
    module = choose(imports.spec.model, imports.source, imports.spec.train.seed).module.double().train()
    (images,), targets = imports.source.batch(np.arange(rows))
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(targets))
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    return loss.detach().numpy(), grads


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["models_for_test:skips", "mlp"])
def test_every_pair_of_cuts_gives_the_gradients_of_the_whole(name: str, rows: int) -> None:
    imports = _import(name)
    wanted_loss, wanted = _plain(imports, rows)
    count = len(imports.model.layers)
    for cuts in [(), *((i,) for i in range(1, count)), *((i, j) for i in range(1, count) for j in range(i + 1, count))]:
        loss, grads = _chain(imports, cuts, rows)
        np.testing.assert_allclose(loss, wanted_loss, rtol=1e-9)
        assert grads.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_allclose(grads[key], value, rtol=1e-9, atol=1e-12, err_msg=f"{key} {cuts}")


def test_a_parameter_that_two_layers_use_is_a_tie() -> None:
    imports = _import("models_for_test:skips")
    assert {"scale", "second.weight", "second.bias"} <= set(imports.model.ties)
    assert "transformer" not in imports.model.ties
    tied = import_job(jobs.job("transformer", {"tied": 1}))
    assert set(tied.model.ties) == {"embed.weight"}
    assert tied.model.size_of("embed.weight") == 256 * 32 * 8


def test_the_exported_state_has_the_users_names_and_loads_strictly() -> None:
    imports = import_job(jobs.job("transformer", {"tied": 1}))
    out = imports.model.export_state(imports.model.all_state())
    module = choose(imports.spec.model, imports.source, 9).module.double()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in out.items()}, strict=True)
    assert "head.weight" in out


def test_programs_are_checked_on_arrival() -> None:
    program = _import("mlp").model.stage(0, 3)
    again = StageProgram.from_bytes(program.to_bytes())
    assert again == program
    verify(again)
    assert again.known is not None
    wrong = again.known.answers[0].model_copy(update={"norm": again.known.answers[0].norm + 1})
    known = again.known.model_copy(update={"answers": (wrong, *again.known.answers[1:])})
    with pytest.raises(ProgramError, match=r"computes .* wrongly"):
        verify(again.model_copy(update={"known": known}))
    with pytest.raises(ProgramError):
        StageProgram.from_bytes(b"{}")
    with pytest.raises(ProgramError):
        StageProgram.from_bytes(program.to_bytes(), "0" * 64)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("models_for_test:branches", "cannot be exported"),
        ("models_for_test:no_batch", "first dimension"),
        ("models_for_test:foreign", "fft"),
        ("models_for_test:nothing", "not a torch.nn.Module"),
        ("models_for_test:breaks", "not today"),
        ("models_for_test:absent", "absent"),
        ("no_such_module:model", "no_such_module"),
        ("mobilenet", "did you mean mobilenet-v2?"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(name: str, says: str) -> None:
    def whole() -> None:
        imports = _import(name)
        imports.model.stage(0, len(imports.model.layers))

    with pytest.raises(AsteroidError) as caught:
        whole()
    assert says in caught.value.what
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_options_that_a_model_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match="no option hiden"):
        _import("mlp", hiden=3)
    with pytest.raises(InputError, match="dropout"):
        _import("mlp", dropout="much")


def test_weights_from_a_local_directory(tmp_path: Path) -> None:
    spec = jobs.job("mobilenet-v2", data={"options": {"size": 32, "channels": 3}}, train={"dtype": "float32"})
    source = import_job(spec).source
    model: Any = choose(spec.model, source, 1).module
    model.model.save_pretrained(tmp_path)
    given = spec.model.model_copy(update={"weights": str(tmp_path)})
    loaded = choose(given, source, 2).module
    wanted = load_file(tmp_path / "model.safetensors")
    name = "mobilenet_v2.conv_stem.first_conv.convolution.weight"
    assert torch.equal(loaded.get_parameter(f"model.{name}"), wanted[name])
    for weights, says in ((tmp_path / "none", "none"), (tmp_path / "empty", "empty")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=says):
            choose(spec.model.model_copy(update={"weights": str(weights)}), source, 2)
    save_file({"x": torch.zeros(1)}, tmp_path / "empty" / "model.safetensors")
    with pytest.raises(InputError, match="do not fit"):
        choose(spec.model.model_copy(update={"weights": str(tmp_path / "empty")}), source, 2)
    fewer = given.model_copy(update={"options": {"classes": 4}})
    assert torch.equal(choose(fewer, source, 2).module.get_parameter(f"model.{name}"), wanted[name])


def test_coarsening_keeps_the_cheap_boundaries() -> None:
    assert coarsen([1.0] * 4, [10.0, 1.0, 10.0], 2) == [1]
    assert coarsen([1.0] * 3, [1.0, 1.0], 5) == [0, 1]
    assert coarsen([5.0, 1.0, 1.0], [1.0, 1.0], 2) == [0]


def test_layers_are_limited_and_none_only_counts() -> None:
    imports = import_job(jobs.job("cnn", plan={"layers": 5}))
    assert len(imports.model.layers) == 5
    whole = import_job(jobs.job("cnn")).model
    for number in range(len(whole.layers)):
        assert any("add_" not in str(row[1]) for row in whole.stage(number, number + 1).nodes[1:-1])
