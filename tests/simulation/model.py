"""A small network of residual layers in numpy: stage programs, a backend, data, and the weights an undisturbed run has.

Each layer has weights, running statistics and a counter; its forward depends on which samples it sees (as dropout
does), and the first and the last layer may share a parameter. So everything that a replay has to put back is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from asteroid_agent.backend.base import SampleKeys, Scores
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.source import Field, counted
from asteroid_core.errors import ProgramError
from asteroid_core.optim import clip_scale, learning_rate
from asteroid_core.program import LossSpec, Port, StageProgram, TensorSpec
from asteroid_core.rounds import RoundPlan
from asteroid_core.spec import OptimizerSpec, TrainSpec
from asteroid_core.wire.safe import Array
from asteroid_core.wire.tensor import Tensor

WIDTH = 3
SAMPLES, VALIDATION = 29, 0.1
SHARED = "shared"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        layers: of the model.
        rounds: of the job.
        batch: samples of a round.
        micro: samples of a micro-batch.
        tied: the first and the last layer share a parameter.
        clip: the global norm of the gradients is bounded.
    """

    layers: int = 4
    rounds: int = 6
    batch: int = 8
    micro: int = 4
    tied: bool = False
    clip: bool = False

    @property
    def train(self) -> TrainSpec:
        return TrainSpec(
            rounds=self.rounds, batch=self.batch, micro_batch=self.micro, seed=7, dtype="float64", validate_every=3
        )

    @property
    def optimizer(self) -> OptimizerSpec:
        return OptimizerSpec(
            lr=0.2, momentum=0.9, schedule="cosine", warmup_rounds=2, clip_norm=0.05 if self.clip else None
        )

    def names(self, layer: int) -> tuple[str, ...]:
        """Weights and buffers of a layer."""
        own = tuple(f"l{layer}.{part}" for part in ("bias", "count", "mean", "weight"))
        return (*own, SHARED) if self.tied and layer in (0, self.layers - 1) else own

    def state_names(self, lo: int, hi: int) -> frozenset[str]:
        """Weights and buffers of a run of layers."""
        return frozenset(name for layer in range(lo, hi) for name in self.names(layer))

    def program(self, lo: int, hi: int) -> StageProgram:
        """The program of a run of layers."""
        return _program(self, lo, hi)

    def initial(self) -> dict[str, Array]:
        """The state before the first round."""
        random = np.random.Generator(np.random.Philox(5))
        out: dict[str, Array] = {}
        for layer in range(self.layers):
            out[f"l{layer}.weight"] = random.normal(size=(WIDTH, WIDTH)) / 2
            out[f"l{layer}.bias"] = random.normal(size=WIDTH) / 4
            out[f"l{layer}.mean"] = np.zeros(WIDTH)
            out[f"l{layer}.count"] = np.array(0, np.int64)
        if self.tied:
            out[SHARED] = 1 + random.normal(size=WIDTH) / 4
        return {**out, "opt/step": np.array(0, np.int64)}

    def feed(self) -> FeedPlan:
        """The samples of every micro-batch."""
        source = Samples()
        split = Split.of(len(source), VALIDATION, self.train.seed)
        return FeedPlan(RoundPlan.of(self.train, len(split.training), self.micro), source, split)


@lru_cache(maxsize=256)
def _program(task: Task, lo: int, hi: int) -> StageProgram:
    tensors: list[TensorSpec] = []
    for layer in range(lo, hi):
        tensors += [
            TensorSpec(name=f"l{layer}.weight", shape=(WIDTH, WIDTH), dtype="float64"),
            TensorSpec(name=f"l{layer}.bias", shape=(WIDTH,), dtype="float64"),
            TensorSpec(name=f"l{layer}.mean", shape=(WIDTH,), dtype="float64", role="statistic", trainable=False),
            TensorSpec(name=f"l{layer}.count", shape=(), dtype="int64", role="counter", trainable=False),
        ]
    whole = (lo, hi) == (0, task.layers)
    if task.tied and (lo == 0 or hi == task.layers):
        tensors.append(TensorSpec(name=SHARED, shape=(WIDTH,), dtype="float64", shared=not whole))
    last = hi == task.layers
    return StageProgram(
        model="residual-tied" if task.tied else "residual",
        lo=lo,
        hi=hi,
        layers=tuple(task.names(layer) for layer in range(lo, hi)),
        inputs=(Port(name=f"x{lo}", dtype="float64", shape=(WIDTH,), grad=lo > 0),),
        outputs=(Port(name=f"x{hi}", dtype="float64", shape=(WIDTH,), grad=not last),),
        tensors=tuple(tensors),
        dropouts=(),
        nodes=(),
        loss=LossSpec(kind="mse") if last else None,
    )


class Samples:
    """The data: floats that are a function of the sample's number."""

    inputs = (Field("float64", (WIDTH,)),)
    target = inputs[0]
    classes = vocabulary = None

    def __init__(self) -> None:
        random = np.random.Generator(np.random.Philox(11))
        self._x = random.normal(size=(SAMPLES, WIDTH))
        self._y = np.tanh(self._x[:, ::-1])

    def __len__(self) -> int:
        return SAMPLES

    def batch(
        self, indices: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64] | None = None
    ) -> tuple[list[Array], Array]:
        return [self._x[indices]], self._y[indices]

    def count(self, indices: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64] | None = None) -> float:
        return counted(self._y[indices])

    def describe(self) -> str:
        return "made of numbers"


@dataclass
class _Saved:
    """What a micro-batch's backward needs."""

    inputs: list[Floats] = field(default_factory=list)
    slopes: list[Floats] = field(default_factory=list)
    first: Floats | None = None
    last: Floats | None = None
    grad: Floats | None = None


class NumpyBackend:
    """The protocol of ``agent/backend/base.py`` for this model."""

    def __init__(self, program: StageProgram, state: Mapping[str, Array], optimizer: OptimizerSpec) -> None:
        self._program, self._optimizer = program, optimizer
        self._steps = int(state["opt/step"])
        self._tensors: dict[str, Any] = {spec.name: np.array(state[spec.name]) for spec in program.tensors}
        self._momentum: dict[str, Floats] = {}
        for spec in program.params:
            slot = f"opt/{spec.name}/momentum_buffer"
            if self._steps and slot not in state:
                raise ProgramError(f"There is no momentum_buffer of {spec.name} after {self._steps} steps.")
            if self._steps:
                self._momentum[spec.name] = np.array(state[slot])
        self._own = [spec.name for spec in program.params if not spec.shared]
        self._mutable = [spec.name for spec in program.tensors if spec.role in ("statistic", "counter")]
        self._begin: dict[str, Array] = {}
        self._grads: dict[str, Floats] = {}
        self._saved: dict[int, _Saved] = {}
        self.backwards = 0
        """micro-batches of this round whose backward is done"""
        self.reduced: set[int | str] = set()
        """groups whose reduced gradients are here"""

    def begin_round(self) -> None:
        self._saved.clear()
        self._grads = {name: np.zeros_like(self._tensors[name]) for name in (s.name for s in self._program.params)}
        self._begin = {name: self._tensors[name].copy() for name in self._mutable}
        self.backwards, self.reduced = 0, set()

    def rollback(self) -> None:
        for name, value in self._begin.items():
            self._tensors[name][...] = value

    def forward(self, micro: int, inputs: Sequence[Tensor], *, train: bool, samples: SampleKeys | None) -> list[Tensor]:
        saved = _Saved()
        out = self._run(_floats(inputs[0]), saved, train, samples)
        if train:
            self._saved[micro] = saved
        return [Tensor.of_numpy(out)]

    def forward_loss(
        self,
        micro: int,
        inputs: Sequence[Tensor],
        target: Tensor,
        normaliser: float,
        *,
        train: bool,
        samples: SampleKeys | None,
    ) -> Scores:
        saved = _Saved()
        wrong = self._run(_floats(inputs[0]), saved, train, samples) - _floats(target)
        if train:
            saved.grad = wrong / normaliser
            self._saved[micro] = saved
        return Scores(float(0.5 * (wrong * wrong).sum() / normaliser), 0.0, float(len(wrong)))

    def _run(self, x: Floats, saved: _Saved, train: bool, samples: SampleKeys | None) -> Floats:
        tensors, program = self._tensors, self._program
        if SHARED in tensors and program.lo == 0:
            saved.first = x
            x = x * tensors[SHARED]
        for layer in range(program.lo, program.hi):
            mask = np.ones((len(x), 1))
            if train and samples is not None:
                mask = 1 + 0.3 * np.sin(samples.indices + 2.0 * samples.epochs + layer)[:, None]
                tensors[f"l{layer}.mean"] *= 0.9
                tensors[f"l{layer}.mean"] += 0.1 * x.mean(axis=0)
                tensors[f"l{layer}.count"] += 1
            bent = np.tanh(x @ tensors[f"l{layer}.weight"] + tensors[f"l{layer}.bias"])
            saved.inputs.append(x)
            saved.slopes.append(0.5 * mask * (1 - bent * bent))
            x = x + 0.5 * mask * bent
        if SHARED in tensors and program.loss is not None:
            saved.last = x
            x = x * tensors[SHARED]
        return x

    def kept_bytes(self, rows: int) -> int:
        return 0

    def backward(self, micro: int, grads: Sequence[Tensor] | None) -> list[Tensor]:
        saved, tensors, program = self._saved[micro], self._tensors, self._program
        grad = saved.grad if grads is None else _floats(grads[0])
        assert grad is not None
        if saved.last is not None:
            self._grads[SHARED] += (grad * saved.last).sum(axis=0)
            grad = grad * tensors[SHARED]
        for layer in reversed(range(program.lo, program.hi)):
            bent = grad * saved.slopes[layer - program.lo]
            self._grads[f"l{layer}.weight"] += saved.inputs[layer - program.lo].T @ bent
            self._grads[f"l{layer}.bias"] += bent.sum(axis=0)
            grad = grad + bent @ tensors[f"l{layer}.weight"].T
        if saved.first is not None:
            self._grads[SHARED] += (grad * saved.first).sum(axis=0)
        self.backwards += 1
        return [Tensor.of_numpy(grad)] if program.inputs[0].grad else []

    def free(self, micro: int) -> None:
        self._saved.pop(micro, None)

    def _group(self, group: int | str) -> list[str]:
        return self._own if group == 0 else [str(group)]

    def gradient(self, group: int | str) -> Floats:
        return np.concatenate([self._grads[name].reshape(-1) for name in self._group(group)])

    def set_gradient(self, group: int | str, vector: npt.NDArray[np.floating]) -> None:
        at = 0
        for name in self._group(group):
            grad = self._grads[name]
            grad[...] = vector[at : at + grad.size].reshape(grad.shape)
            at += grad.size
        self.reduced.add(group)

    def squared_norm(self, shared: Sequence[str]) -> float:
        names = [*self._own, *shared]
        return float(sum((self._grads[name] ** 2).sum() for name in names))

    def statistics(self) -> Floats:
        return np.concatenate([self._tensors[spec.name].reshape(-1) for spec in self._program.statistics])

    def set_statistics(self, vector: npt.NDArray[np.floating]) -> None:
        at = 0
        for spec in self._program.statistics:
            value = self._tensors[spec.name]
            value[...] = vector[at : at + value.size].reshape(value.shape)
            at += value.size

    def step(self, learning_rate: float, scale: float) -> None:
        self._steps += 1
        for name, grad in self._grads.items():
            if scale != 1.0:
                grad = grad * scale
            before = self._momentum.get(name)
            if before is None:
                self._momentum[name] = grad.copy()
            else:
                before *= self._optimizer.momentum
                before += grad
            self._tensors[name] -= learning_rate * self._momentum[name]
        self._grads = {}

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        out: dict[str, npt.NDArray[np.generic]] = dict(self._tensors)
        out["opt/step"] = np.array(self._steps, np.int64)
        for name, value in self._momentum.items():
            out[f"opt/{name}/momentum_buffer"] = value
        return out


def _floats(tensor: Tensor) -> Floats:
    return np.array(tensor.numpy(), np.float64)


@lru_cache(maxsize=32)
def undisturbed(task: Task) -> tuple[Mapping[str, Array], ...]:
    """The state after each number of rounds of one device that trains alone and never fails."""
    backend = NumpyBackend(task.program(0, task.layers), task.initial(), task.optimizer)
    feed = task.feed()
    states: list[Mapping[str, Array]] = [_copy(backend.state())]
    for number in range(task.rounds):
        backend.begin_round()
        for micro in range(task.batch // task.micro):
            batch = feed.micro_batch(0, number, micro)
            keys = SampleKeys(task.train.seed, batch.epochs, batch.indices)
            inputs, target = Tensor.of_numpy(batch.inputs[0]), Tensor.of_numpy(batch.targets)
            backend.forward_loss(micro, [inputs], target, batch.normaliser, train=True, samples=keys)
            backend.backward(micro, None)
        scale = clip_scale(task.optimizer, [backend.squared_norm([])])
        backend.step(learning_rate(task.optimizer, number, task.rounds), scale)
        states.append(_copy(backend.state()))
    return tuple(states)


def _copy(state: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value.copy() for name, value in state.items()}


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[float, str]:
    """The largest relative difference of two states, over the names of ``found``, and where it is."""
    worst, where = 0.0, ""
    for name, value in found.items():
        if name not in wanted:
            return float("inf"), name
        other = wanted[name]
        far = float(np.abs(value - other).max() / max(1e-3, float(np.abs(other).max())))
        if not far <= worst:
            worst, where = far, name
    return worst, where
