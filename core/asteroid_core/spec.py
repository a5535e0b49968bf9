"""What a person asks for: the job file, checked field by field."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from asteroid_core.errors import InputError
from asteroid_core.ids import job_id
from asteroid_core.plan import Frozen, Order

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Scalar = str | int | float | bool


class ModelSpec(Frozen):
    """Which model: a name of the zoo, or ``package.module:function`` of the user."""

    name: str
    options: dict[str, Scalar] = Field(default_factory=dict)
    weights: str | None = None
    """local directory with pretrained weights (safetensors)"""


class DataSpec(Frozen):
    """Which data, and where it lies."""

    source: str
    """``digits``, a path to .npz/.npy, a folder of images, a text file, or ``package.module:function``"""
    options: dict[str, Scalar] = Field(default_factory=dict)
    validation: float = Field(default=0.1, ge=0, lt=1)
    """part of the samples that is kept for validation"""
    owner: str = "coordinator"
    """the coordinator, or the device on which the data lies"""


class OptimizerSpec(Frozen):
    """SGD with momentum, or AdamW, as in torch.optim."""

    kind: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """``linear`` falls to zero; both begin after the warm-up"""
    warmup_rounds: int = Field(default=0, ge=0)
    clip_norm: float | None = Field(default=None, gt=0)
    """global norm over all stages"""


class TrainSpec(Frozen):
    """How long and in which pieces."""

    epochs: int | None = Field(default=None, ge=1)
    rounds: int | None = Field(default=None, ge=1)
    batch: int = Field(default=64, ge=1)
    """samples of a round (mini-batch)"""
    micro_batch: int | Literal["auto"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**32)
    dtype: Literal["float32", "float64"] = "float32"
    validate_every: int | None = Field(default=None, ge=1)
    """rounds; default: after each epoch"""

    @model_validator(mode="after")
    def _check(self) -> TrainSpec:
        if self.epochs is None and self.rounds is None:
            raise ValueError("give epochs or rounds")
        if isinstance(self.micro_batch, int) and self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self


class PlanSpec(Frozen):
    """How to plan."""

    planner: str = "asteroid"
    order: Order = "1f1b"
    devices: tuple[str, ...] = ()
    """only these; empty: every ready device"""
    layers: int = Field(default=24, ge=1, le=1000)
    """the graph is coarsened to at most this many layers before planning"""
    stages: int | None = Field(default=None, ge=1)
    """exactly so many stages; default: as many as is fastest"""
    all_devices: bool = False
    """leave no device out, even where that is slower"""
    fixed: str | None = None
    """a plan by hand: ``0-3 a:4 b:4 | 4-7 c:8``"""


class CheckpointSpec(Frozen):
    """How often the coordinator keeps everything."""

    every: int | Literal["auto"] = "auto"
    keep: int = Field(default=2, ge=1)


class ReplicationSpec(Frozen):
    """How often devices keep snapshots and send them to each other, so that a loss costs little work."""

    every: int | Literal["auto"] = "auto"
    """rounds; 0 turns it off, and only checkpoints remain"""
    budget: float = Field(default=0.05, gt=0, le=1)
    """part of the training time that it may cost"""
    max_loss_s: float = Field(default=60.0, gt=0)
    """seconds of work that a loss may cost at most; goes before the budget"""
    recovery: Literal["replay", "heavy"] = "replay"
    """``heavy`` plans anew and sends all weights through the coordinator: a baseline to compare with"""

    @model_validator(mode="after")
    def _check(self) -> ReplicationSpec:
        if isinstance(self.every, int) and self.every < 0:
            raise ValueError(f"every must be auto, 0 or a number of rounds, not {self.every}")
        return self


class JobSpec(Frozen):
    """A job file."""

    name: str
    model: ModelSpec
    data: DataSpec
    train: TrainSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    plan: PlanSpec = PlanSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    replication: ReplicationSpec = ReplicationSpec()


def _unknown(place: tuple[int | str, ...]) -> str:
    """The sentence about a field that does not exist, with the one that was perhaps meant."""
    model: Any = JobSpec
    for name in place[:-1]:
        model = model.model_fields[str(name)].annotation or JobSpec
    wrong, known = str(place[-1]), list(model.model_fields)
    near = difflib.get_close_matches(wrong, known, 1)
    return f"there is no field {wrong}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")


def parse_job(raw: dict[str, Any], where: str) -> JobSpec:
    """Check a job given as a mapping; ``where`` names it in errors.

    Raises:
        InputError: names the first field that is wrong and what it should be.
    """
    try:
        spec = JobSpec.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"]) or "the job"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            place, message = ".".join(str(p) for p in first["loc"][:-1]) or "the job", _unknown(first["loc"])
        raise InputError(
            f"{where}: {place}: {message}".rstrip("?.") + ("?" if message.endswith("?") else "."),
            "See docs/jobs.md for every field, or examples/ for jobs to copy.",
        ) from None
    job_id(spec.name)
    return spec


def load_job(path: Path) -> JobSpec:
    """Read a job file (TOML).

    Raises:
        InputError: missing, not TOML, or a field is wrong.
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"There is no job file {path}.", "examples/digits.toml is one to copy.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The job file {path} cannot be read: {error}.", "Check the path and its permissions."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"The job file {path} is not TOML: {error}.", "Mend that line; https://toml.io shows the syntax."
        ) from None
    raw.setdefault("name", path.stem.lower().replace("_", "-"))
    return parse_job(raw, str(path))
