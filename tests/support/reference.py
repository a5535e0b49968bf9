"""Trains the same rounds in one process with plain torch: the user's own module, torch's optimizers, no pipeline.

Two rules of the runtime are repeated here in plain words, since a single process has no devices: batch norm normalises
over each device's own rows, and its running statistics are averaged by sample count at the end of a round; a dropout
mask belongs to the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from asteroid_coordinator.importing import Imports
from asteroid_coordinator.model.zoo import choose
from asteroid_core.optim import learning_rate
from asteroid_core.plan import Plan
from asteroid_core.program import Dropout
from asteroid_core.randomness import dropout_mask

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass
class _Samples:
    """The samples that the module works on now, for its dropouts."""

    seed: int
    epochs: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    left: Iterator[Dropout]


def _dropout_of(holder: list[_Samples]) -> Callable[..., torch.Tensor]:
    """Dropout whose mask is a function of the sample, in place of ``torch.nn.functional.dropout``."""

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0.0:
            return x
        now = holder[0]
        mask = dropout_mask(next(now.left), now.seed, now.epochs, now.indices)
        return x * torch.from_numpy(mask)

    return dropout


class _SlicedNorm(nn.Module):
    """Batch norm over the rows of each device apart."""

    def __init__(self, norm: nn.BatchNorm2d, bounds: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)
        self._momentum, self._eps, self._bounds = norm.momentum, norm.eps, bounds
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def begin(self) -> None:
        """Each device begins the round with the same statistics."""
        self._own = [(self.running_mean.clone(), self.running_var.clone()) for _ in self._bounds]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_batches_tracked += 1
        pieces = [
            F.batch_norm(x[lo:hi], mean, var, self.weight, self.bias, True, self._momentum or 0.0, self._eps)
            for (lo, hi), (mean, var) in zip(self._bounds, self._own, strict=True)
        ]
        return torch.cat(pieces)

    def end(self) -> None:
        """Average by sample count."""
        total = self._bounds[-1][1]
        for place, buffer in ((0, self.running_mean), (1, self.running_var)):
            parts = [own[place] * ((hi - lo) / total) for own, (lo, hi) in zip(self._own, self._bounds, strict=True)]
            buffer.copy_(sum(parts[1:], parts[0]))


def train(imports: Imports, plan: Plan) -> tuple[Arrays, list[float]]:
    """Return the state after all rounds, under the user's names, and the loss of each round."""
    spec = imports.spec
    module = choose(spec.model, imports.source, spec.train.seed).module.to(getattr(torch, spec.train.dtype))
    module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in _initial(imports, module).items()})
    module.train()
    holder: list[_Samples] = []
    norms = _patch(module, imports, plan)
    optimizer = _optimizer(spec.optimizer, module)
    feed = imports.feed_plan(plan)
    dropouts = imports.model.stage(0, len(imports.model.layers)).dropouts
    losses = []
    for number in range(imports.rounds):
        for norm in norms:
            norm.begin()
        optimizer.zero_grad()
        total = 0.0
        for micro in range(plan.micro_count):
            batch = feed.micro_batch(0, number, micro)
            holder[:] = [_Samples(spec.train.seed, batch.epochs, batch.indices, iter(dropouts))]
            with mock.patch("torch.nn.functional.dropout", _dropout_of(holder)):
                output = module(*(torch.from_numpy(np.array(x)) for x in batch.inputs))
            loss = _loss(imports, output, torch.from_numpy(np.array(batch.targets))) / batch.normaliser
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        if spec.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), spec.optimizer.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec.optimizer, number, imports.rounds)
        optimizer.step()
        for norm in norms:
            norm.end()
        losses.append(total)
    held = imports.model.all_state().keys()  # a tied parameter under one of its names
    return {name: value.detach().numpy() for name, value in module.state_dict().items() if name in held}, losses


def _initial(imports: Imports, module: nn.Module) -> Arrays:
    """The state that the devices begin with; a tied parameter is held once, the module names it twice."""
    state = dict(imports.model.all_state())
    own = module.state_dict()
    return {name: state.get(name, value.numpy()) for name, value in own.items()}


def _optimizer(spec: object, module: nn.Module) -> torch.optim.Optimizer:
    from asteroid_core.spec import OptimizerSpec

    assert isinstance(spec, OptimizerSpec)
    params = [p for p in module.parameters() if p.requires_grad]
    if spec.kind == "sgd":
        return torch.optim.SGD(params, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    betas = (spec.beta1, spec.beta2)
    return torch.optim.AdamW(params, lr=spec.lr, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay)


def _loss(imports: Imports, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = imports.model.stage(0, len(imports.model.layers)).loss
    assert loss is not None
    if loss.kind == "mse":
        return F.mse_loss(output, target, reduction="sum")
    return F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="sum", ignore_index=-100)


def _patch(module: nn.Module, imports: Imports, plan: Plan) -> list[_SlicedNorm]:
    norms = []
    names = [imports.model.state_names(stage.lo, stage.hi) for stage in plan.stages]
    for path, child in list(module.named_modules()):
        parent = module.get_submodule(path.rpartition(".")[0])
        leaf = path.rpartition(".")[2]
        if isinstance(child, nn.BatchNorm2d):
            stage = next(i for i, held in enumerate(names) if f"{path}.running_mean" in held)
            norm = _SlicedNorm(child, plan.stages[stage].bounds)
            norms.append(norm)
            setattr(parent, leaf, norm)
    return norms


def distance(a: Arrays, b: Arrays, strict: bool = True) -> tuple[float, float]:
    """Return how far two states are apart, over all parameters and statistics together.

    The L2 distance relative to the L2 norm, and the largest difference relative to the largest weight. Single tensors
    may differ more: a bias before a batch norm has a gradient of zero in theory and of rounding in practice.
    """
    squares = square = worst = largest = 0.0
    for name, value in b.items():
        if value.dtype.kind != "f":
            assert not strict or np.array_equal(a[name], value), name
            continue
        wanted = np.asarray(value, np.float64)
        difference = np.asarray(a[name], np.float64) - wanted
        squares += float(np.square(difference).sum())
        square += float(np.square(wanted).sum())
        worst = max(worst, float(np.abs(difference).max(initial=0.0)))
        largest = max(largest, float(np.abs(wanted).max(initial=0.0)))
    return (squares / square) ** 0.5, worst / largest
