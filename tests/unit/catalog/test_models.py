"""The files of the paper's models: what they say, that they are what the graphs say, and that torch is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asteroid_coordinator.catalog import models
from asteroid_coordinator.catalog.models import OTHERS, PAPER, measure, model, to_text
from asteroid_coordinator.catalog.work import ModelWork, Operator
from asteroid_core.errors import InputError
from asteroid_core.spec import load_job

LAYERS = Path(models.__file__).parent / "layers"
HEADS = {"efficientnet-b1": (1280, 10), "mobilenet-v2": (1280, 10), "resnet-50": (2048, 100)}
"""Inputs of the last layer, and its outputs here; published figures have 1000 classes."""


@pytest.mark.parametrize(
    ("name", "published"), [("efficientnet-b1", 7.8e6), ("mobilenet-v2", 3.5e6), ("resnet-50", 25.6e6)]
)
def test_parameters_are_the_published_ones_but_for_the_classes(name: str, published: float) -> None:
    width, classes = HEADS[name]
    assert model(name).parameters + (1000 - classes) * (width + 1) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("efficientnet-b1", 0.70e9 * (32 / 240) ** 2),
        ("mobilenet-v2", 0.30e9 * (32 / 224) ** 2),
        ("resnet-50", 4.1e9),
    ],
)
def test_operations_are_the_published_ones_scaled_with_the_area(name: str, published: float) -> None:
    assert model(name).flops / 2 == pytest.approx(published, rel=0.05)


def test_bert_small() -> None:
    bert = model("bert-small")
    assert bert.parameters == pytest.approx(28.8e6, rel=0.01)
    blocks = 4 * 12 * 512 * 512  # weights of attention and feed-forward layers
    assert bert.flops == pytest.approx(2 * 32 * blocks, rel=0.05)
    embedding = bert.layers[0].operators[0]
    assert embedding.trained == 30522 * 512 * 4
    assert embedding.weights == 0  # a forward reads only the rows that it looks up


@pytest.mark.parametrize("name", PAPER)
def test_files_agree_with_themselves(name: str) -> None:
    work = model(name)
    assert work.name == name
    assert 10 <= len(work.layers) <= models.MAX_LAYERS
    assert work.samples == PAPER[name].samples
    for layer in work.layers:
        assert layer.info.parameter_bytes >= layer.info.trainable_bytes
        assert sum(op.trained for op in layer.operators) <= layer.info.trainable_bytes
        for op in layer.operators:
            assert min(op.flops, op.moved, op.weights, op.trained) >= 0
    assert sum(op.trained for layer in work.layers for op in layer.operators) == pytest.approx(
        4 * work.parameters, rel=0.02
    )
    assert all(layer.info.output_bytes > 0 for layer in work.layers)
    assert (LAYERS / f"{name}.json").read_text() == to_text(work)


def test_depthwise_convolutions_are_seen_where_there_are_any() -> None:
    def kinds(work: ModelWork) -> dict[str, int]:
        operators: list[Operator] = [op for layer in work.layers for op in layer.operators]
        return {kind: sum(op.kind == kind for op in operators) for kind in ("conv", "depthwise", "matmul")}

    assert kinds(model("mobilenet-v2")) == {"conv": 35, "depthwise": 17, "matmul": 1}
    assert kinds(model("resnet-50")) == {"conv": 53, "depthwise": 0, "matmul": 1}
    assert kinds(model("efficientnet-b1"))["depthwise"] == 23
    assert kinds(model("bert-small")) == {"conv": 0, "depthwise": 0, "matmul": 34}


def test_an_unknown_model() -> None:
    with pytest.raises(InputError, match="did you mean mobilenet-v2"):
        model("mobilnet")


def test_reading_the_files_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from asteroid_coordinator.catalog.environments import environment\n"
        "from asteroid_coordinator.catalog.models import PAPER, model\n"
        "for name in PAPER:\n    environment('B', 100).problem(model(name))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    path = [p for p in sys.path if p and Path(p).is_dir()]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_model_of_the_zoo_is_in_the_catalog() -> None:
    from asteroid_coordinator.model.zoo import ZOO

    assert {*PAPER, *OTHERS} == set(ZOO)


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "gpt2-mini"])
def test_other_models_are_exported_when_asked_for(name: str) -> None:
    work = model(name)
    assert work.parameters > 0
    assert work.flops > 0
    assert bool(work.tied) == (name == "gpt2-mini")
    if work.tied:
        assert all(tied.size > 0 and len(tied.layers) > 1 for tied in work.tied.values())


def test_the_model_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "digits.toml"
    file.write_text('[model]\nname = "cnn"\n[data]\nsource = "digits"\n[train]\nrounds = 3\n[plan]\nlayers = 5\n')
    work = models.of_job(load_job(file))
    assert len(work.layers) == 5
    assert "digits" in work.samples
    assert "job digits" in work.made


def test_the_command_shows_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    models.main(["mobilenet-v2"])
    assert "2.2 M parameters" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        models.main(["cnn"])
    assert "has no file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_file_is_what_the_graph_says() -> None:
    made = measure("mobilenet-v2", PAPER["mobilenet-v2"])
    filed = model("mobilenet-v2")
    assert made.model_copy(update={"made": filed.made}) == filed
