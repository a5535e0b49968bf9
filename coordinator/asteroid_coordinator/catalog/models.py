"""Models of the catalog: the four of the paper as files, any other of the zoo or of a job exported when asked for.

The files hold what the exported graphs say, so that reading them needs no torch. To write them again:

    python -m asteroid_coordinator.catalog.models --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from asteroid_coordinator.catalog.naming import unknown
from asteroid_coordinator.catalog.work import ModelWork
from asteroid_core.data.source import Array, Field, Indices
from asteroid_core.errors import InputError
from asteroid_core.spec import JobSpec, ModelSpec, Scalar

if TYPE_CHECKING:
    from asteroid_core.data.source import Source

MAX_LAYERS = 50
"""Layers that a graph is coarsened to."""


@dataclass(frozen=True)
class Workload:
    """What a model of the zoo is trained on when no job says so.

    Attributes:
        shape: of a sample.
        classes: of the targets; None for models that predict tokens.
        vocabulary: of tokens; None for pictures.
        options: of the model.
        samples: for people.
    """

    shape: tuple[int, ...]
    classes: int | None
    vocabulary: int | None = None
    options: tuple[tuple[str, Scalar], ...] = ()
    samples: str = ""


PAPER: dict[str, Workload] = {
    "efficientnet-b1": Workload((3, 32, 32), 10, samples="pictures of 3x32x32, 10 classes"),
    "mobilenet-v2": Workload((3, 32, 32), 10, samples="pictures of 3x32x32, 10 classes"),
    "resnet-50": Workload((3, 224, 224), 100, samples="pictures of 3x224x224, 100 classes"),
    "bert-small": Workload((32,), 2, 30522, samples="32 tokens of 30522, 2 classes"),
}
"""The paper's four models; sizes of samples are assumptions, as is what it trained them on."""

OTHERS: dict[str, Workload] = {
    "mlp": Workload((64,), 10, samples="64 numbers, 10 classes"),
    "cnn": Workload((3, 32, 32), 10, samples="pictures of 3x32x32, 10 classes"),
    "transformer": Workload((32,), None, 256, samples="32 tokens of 256"),
    "bert-small-mlm": Workload((32,), None, 30522, samples="32 tokens of 30522"),
    "gpt2-mini": Workload((64,), None, 256, samples="64 tokens of 256"),
}
"""The rest of the zoo."""


class Shape:
    """A data set that is only a shape: enough to export a model for it."""

    def __init__(self, workload: Workload) -> None:
        tokens = workload.vocabulary is not None
        self.inputs = (Field("int64" if tokens else "float32", workload.shape),)
        self.target = Field("int64", workload.shape if workload.classes is None else ())
        self.classes = workload.classes
        self.vocabulary = workload.vocabulary

    def __len__(self) -> int:
        return 1

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Refused: there are no samples."""
        raise InputError("A model of the catalog has no samples.", "This is a bug; report it.")

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Refused: there are no samples."""
        raise InputError("A model of the catalog has no samples.", "This is a bug; report it.")

    def describe(self) -> str:
        """What a sample is."""
        return ", ".join(map(str, self.inputs))


@cache
def model(name: str) -> ModelWork:
    """Return a model by its name in the zoo: from its file, else by exporting it.

    Raises:
        InputError: there is no such model.
    """
    if name in PAPER:
        text = files(__package__).joinpath("layers").joinpath(f"{name}.json").read_text(encoding="utf-8")
        return ModelWork.model_validate_json(text)
    if name not in OTHERS:
        raise unknown("model", name, (*PAPER, *OTHERS))
    return measure(name, OTHERS[name])


def is_on_file(name: str) -> bool:
    """Whether a model needs no export."""
    return name in PAPER


def measure(name: str, workload: Workload) -> ModelWork:
    """Export a model of the zoo for a workload; needs torch and some seconds."""
    import torch
    import transformers

    spec = ModelSpec(name=name, options=dict(workload.options))
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    made = f"from its graph, exported with {versions}"
    return _export(spec, Shape(workload), workload.samples, made, MAX_LAYERS, 0)


def of_job(spec: JobSpec) -> ModelWork:
    """Export the model of a job for its data; needs torch and some seconds.

    Raises:
        InputError: the data cannot be opened, or the model does not take it.
        ProgramError: the model cannot be exported.
    """
    from asteroid_core.data import open_source

    source = open_source(spec.data, seed=spec.train.seed, dtype=spec.train.dtype)
    made = f"from the graph of the model of job {spec.name}"
    return _export(spec.model, source, source.describe(), made, spec.plan.layers, spec.train.seed, spec.train.dtype)


def _export(
    spec: ModelSpec, source: Source, samples: str, made: str, layers: int, seed: int, dtype: str = "float32"
) -> ModelWork:
    from asteroid_coordinator.catalog.graphs import work_of
    from asteroid_coordinator.model.importer import import_model

    return work_of(import_model(spec, source, dtype=dtype, seed=seed, max_layers=layers), samples, made)


def to_text(work: ModelWork) -> str:
    """Return a model as JSON: a line a layer, so that changes can be read."""
    head = work.model_dump(mode="json", exclude={"layers"})
    layers = ",\n".join(
        "  " + json.dumps(layer.model_dump(mode="json"), separators=(",", ":")) for layer in work.layers
    )
    return json.dumps({**head, "layers": None}, indent=1).replace('"layers": null', f'"layers": [\n{layers}\n ]') + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Show the models, or write their files."""
    parser = argparse.ArgumentParser(prog="python -m asteroid_coordinator.catalog.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"default: {' '.join(PAPER)}")
    parser.add_argument("--write", action="store_true", help="export them and write the files of this package")
    args = parser.parse_args(arguments)
    for name in args.names or PAPER:
        if name not in PAPER:
            parser.error(f"{name} has no file; there are {', '.join(PAPER)}")
        if args.write:
            path = Path(__file__).parent / "layers" / f"{name}.json"
            path.write_text(to_text(measure(name, PAPER[name])), encoding="utf-8")
            model.cache_clear()
        print(f"{name}: {model(name).describe()}")


if __name__ == "__main__":
    main()
