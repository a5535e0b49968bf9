"""The torch engine: a stage program as an fx graph, autograd between the cuts, torch's own optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from asteroid_agent.backend.base import Arrays, SampleKeys, Scores, Vector
from asteroid_core.errors import ProgramError
from asteroid_core.held import OPTIMIZER_PREFIX
from asteroid_core.program import StageProgram
from asteroid_core.randomness import dropout_mask, example_inputs
from asteroid_core.spec import OptimizerSpec
from asteroid_core.torch_graph import loss_and_scores, rebuild
from asteroid_core.wire.tensor import Tensor

_SLOTS = {"sgd": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}
_STEP = f"{OPTIMIZER_PREFIX}step"


@dataclass
class _Saved:
    """What the backward of a micro-batch needs."""

    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None


class TorchBackend:
    """One stage on torch; see ``backend.base`` for the contract.

    Args:
        program: what to compute.
        state: weights, buffers and, if the job has begun, optimizer state.
        optimizer: which one.
        device: where to compute; by default CUDA if there is one, else the processor.

    Raises:
        ProgramError: a foreign operator, a missing or misshapen weight.
    """

    def __init__(
        self, program: StageProgram, state: Arrays, optimizer: OptimizerSpec, device: torch.device | None = None
    ) -> None:
        self._program = program
        self._spec = optimizer
        self._device = device or best_device()
        self._tensors = {t.name: self._load(t.name, t.shape, t.dtype, t.trainable, state) for t in program.tensors}
        self._params = [self._tensors[t.name] for t in program.params]
        self._own = [self._tensors[t.name] for t in program.params if not t.shared]
        self._train = rebuild(program, self._tensors, self._device, train=True)
        self._eval = rebuild(program, self._tensors, self._device, train=False)
        self._mutable = [t.name for t in program.tensors if t.role in ("statistic", "counter")]
        self._saved: dict[int, _Saved] = {}
        self._begin: dict[str, torch.Tensor] = {}
        self._steps = 0
        self._optimizer = self._make_optimizer()
        self._load_optimizer(state)

    def _load(self, name: str, shape: tuple[int, ...], dtype: str, trainable: bool, state: Arrays) -> torch.Tensor:
        value = state.get(name)
        if value is None or value.shape != shape or value.dtype.name != dtype:
            found = "nothing" if value is None else f"{value.dtype.name}{list(value.shape)}"
            raise ProgramError(f"The state has {found} for {name}, the program wants {dtype}{list(shape)}.")
        tensor = torch.from_numpy(np.array(value)).to(self._device)
        role = next(t.role for t in self._program.tensors if t.name == name)
        return nn.Parameter(tensor, requires_grad=trainable) if role == "param" and trainable else tensor

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        spec = self._spec
        if not self._params:
            return None
        if spec.kind == "sgd":
            return torch.optim.SGD(self._params, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
        return torch.optim.AdamW(
            self._params, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay
        )

    def _load_optimizer(self, state: Arrays) -> None:
        if _STEP not in state:
            return
        self._steps = int(state[_STEP])  # also where nothing is trained: the parts of a checkpoint must agree
        if self._optimizer is None:
            return
        for spec, param in zip(self._program.params, self._params, strict=True):
            slots: dict[str, torch.Tensor] = {}
            for slot in _SLOTS[self._spec.kind]:
                value = state.get(f"{OPTIMIZER_PREFIX}{spec.name}/{slot}")
                if value is None and self._steps and (self._spec.kind == "adamw" or self._spec.momentum > 0):
                    raise ProgramError(f"The state has no {slot} of {spec.name} after {self._steps} steps.")
                if value is not None:
                    slots[slot] = torch.from_numpy(np.array(value)).to(self._device)
            if slots:
                if self._spec.kind == "adamw":
                    slots["step"] = torch.tensor(float(self._steps))
                self._optimizer.state[param] = slots

    # A round

    def begin_round(self) -> None:
        """Forget all gradients and activations; remember statistics and counters."""
        self._saved.clear()
        for param in self._params:
            param.grad = None
        self._begin = {name: self._tensors[name].clone() for name in self._mutable}

    def rollback(self) -> None:
        """Take statistics and counters back to the begin of the round."""
        with torch.no_grad():
            for name, value in self._begin.items():
                self._tensors[name].copy_(value)

    def forward(self, micro: int, inputs: Sequence[Tensor], *, train: bool, samples: SampleKeys | None) -> list[Tensor]:
        """Return the outputs of a micro-batch's share; in training, keep what the backward needs."""
        leaves, outputs = self._run(inputs, train, samples)
        if train:
            self._saved[micro] = _Saved(leaves, outputs, None)
        return [to_wire(o) for o in outputs]

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
        """The same on the last stage: loss and scores instead of outputs."""
        if self._program.loss is None:
            raise ProgramError("Only the last stage has a loss.")
        leaves, outputs = self._run(inputs, train, samples)
        wanted = from_wire(target, self._device)
        with torch.set_grad_enabled(train):
            loss, correct, counted = loss_and_scores(self._program.loss, outputs[0], wanted)
            loss = loss / normaliser
        if train:
            self._saved[micro] = _Saved(leaves, (), loss)
        return Scores(float(loss.detach()), correct, counted)

    def _run(
        self, inputs: Sequence[Tensor], train: bool, samples: SampleKeys | None
    ) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
        leaves = []
        for port, tensor in zip(self._program.inputs, inputs, strict=True):
            leaf = from_wire(tensor, self._device)
            leaves.append(leaf.requires_grad_() if port.grad and train else leaf)
        if not train:
            with torch.no_grad():
                return leaves, self._eval(*leaves)
        masks = []
        for dropout in self._program.dropouts:
            if samples is None:
                raise ProgramError("Dropout needs to know which samples it works on.")
            mask = dropout_mask(dropout, samples.seed, samples.epochs, samples.indices)
            masks.append(torch.from_numpy(mask).to(self._device))
        return leaves, self._train(*leaves, *masks)

    def kept_bytes(self, rows: int) -> int:
        """Bytes that a training forward of ``rows`` example samples keeps for its backward, weights not counted."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self._tensors.values()}
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        samples = SampleKeys(0, np.zeros(rows, np.int64), np.arange(rows))
        before = {name: self._tensors[name].clone() for name in self._mutable}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            _, outputs = self._run(example_inputs(self._program, rows), True, samples)
        del outputs  # they held the graph, and so every storage that was counted
        with torch.no_grad():
            for name, value in before.items():
                self._tensors[name].copy_(value)
        return sum(kept.values())

    def backward(self, micro: int, grads: Sequence[Tensor] | None) -> list[Tensor]:
        """Add to the parameters' gradients; return the gradients of the inputs that have one."""
        saved = self._saved.pop(micro)
        if saved.loss is not None:
            saved.loss.backward()  # type: ignore[no-untyped-call]
        else:
            wanted = [o for o, port in zip(saved.outputs, self._program.outputs, strict=True) if port.grad]
            pairs = [
                (o, from_wire(g, self._device)) for o, g in zip(wanted, grads or (), strict=True) if o.requires_grad
            ]
            if pairs:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        out = []
        for port, leaf in zip(self._program.inputs, saved.inputs, strict=True):
            if port.grad:
                out.append(to_wire(leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)))
        return out

    def free(self, micro: int) -> None:
        """Drop what is left of a micro-batch."""
        self._saved.pop(micro, None)

    # Gradients

    def _group(self, group: int | str) -> list[torch.Tensor]:
        return self._own if group == 0 else [self._tensors[str(group)]]

    def gradient(self, group: int | str) -> Vector:
        """Return the gradients of a reduction group, flat."""
        flat = [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in self._group(group)]
        if not flat:
            return np.zeros(0, self._dtype())
        vector: Vector = torch.cat(flat).cpu().numpy()
        return vector

    def set_gradient(self, group: int | str, vector: Vector) -> None:
        """Replace the gradients of a reduction group; on a processor they are views of the vector from now on."""
        values = torch.from_numpy(vector).to(self._device)
        at = 0
        for param in self._group(group):
            param.grad = values[at : at + param.numel()].view_as(param)
            at += param.numel()
        if at != values.numel():
            raise ProgramError(f"A reduced gradient has {values.numel()} elements, expected {at}.")

    def squared_norm(self, shared: Sequence[str]) -> float:
        """Return the squared L2 norm of the stage's own gradients and of the shared parameters named here."""
        params = [*self._own, *(self._tensors[name] for name in shared)]
        return math.fsum(float(torch.linalg.vector_norm(p.grad)) ** 2 for p in params if p.grad is not None)

    def _dtype(self) -> str:
        return next((t.dtype for t in self._program.tensors if t.dtype.startswith("float")), "float32")

    def statistics(self) -> Vector:
        """Return the running statistics, flat, in the type of the gradients."""
        flat = [self._tensors[t.name].reshape(-1).cpu().numpy() for t in self._program.statistics]
        return np.concatenate(flat) if flat else np.zeros(0, self._dtype())

    def set_statistics(self, vector: Vector) -> None:
        """Replace the running statistics."""
        at = 0
        with torch.no_grad():
            for spec in self._program.statistics:
                buffer = self._tensors[spec.name]
                part = torch.from_numpy(np.array(vector[at : at + buffer.numel()]))
                buffer.copy_(part.view_as(buffer))
                at += buffer.numel()

    def step(self, learning_rate: float, scale: float) -> None:
        """Multiply the gradients by ``scale``, take one optimizer step, forget the gradients."""
        self._steps += 1
        if self._optimizer is None:
            return
        for param in self._params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            elif scale != 1.0:
                param.grad.mul_(scale)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for param in self._params:
            param.grad = None

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return weights, buffers and optimizer state; on a processor these are views."""
        out: dict[str, npt.NDArray[np.generic]] = {
            name: value.detach().cpu().numpy() for name, value in self._tensors.items()
        }
        out[_STEP] = np.array(self._steps, np.int64)
        if self._optimizer is not None:
            for spec, param in zip(self._program.params, self._params, strict=True):
                for slot in _SLOTS[self._spec.kind]:
                    value = self._optimizer.state.get(param, {}).get(slot)
                    if value is not None:
                        out[f"{OPTIMIZER_PREFIX}{spec.name}/{slot}"] = value.detach().cpu().numpy()
        return out


def best_device() -> torch.device:
    """CUDA if there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def from_wire(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """View the bytes as a torch tensor, without a copy on the processor."""
    dtype = getattr(torch, tensor.dtype)
    if tensor.data.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    data = bytearray(tensor.data) if tensor.data.readonly else tensor.data  # torch warns about memory it may not write
    return torch.frombuffer(data, dtype=dtype).view(tensor.shape).to(device)


def to_wire(tensor: torch.Tensor) -> Tensor:
    """View a torch tensor as bytes, without a copy if it is contiguous and on the processor."""
    flat = tensor.detach().cpu().contiguous()
    name = str(flat.dtype).removeprefix("torch.")
    data: npt.NDArray[np.uint8] = flat.reshape(-1).view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return Tensor(name, tuple(flat.shape), data.data)
