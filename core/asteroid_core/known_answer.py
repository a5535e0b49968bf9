"""The known-answer test: a stage program on a seeded example, forward and backward, as a short summary. Needs torch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import nn

from asteroid_core.errors import ProgramError
from asteroid_core.program import Answer, StageProgram
from asteroid_core.randomness import dropout_mask, example_inputs, example_state, example_targets
from asteroid_core.torch_graph import loss_and_scores, rebuild

VALUES = 4
"""Elements of each tensor that are written down beside its norm."""
TOLERANCE = {"float64": 1e-9, "float32": 2e-3}
"""Relative to the tensor's norm: a right device differs by rounding, a wrong one by more."""


def run_example(program: StageProgram, rows: int, device: torch.device | None = None) -> list[Answer]:
    """Run the program on its seeded example and summarise outputs, loss and gradients of inputs and parameters."""
    where = device or torch.device("cpu")
    made = {name: torch.from_numpy(value).to(where) for name, value in example_state(program).items()}
    trained = {spec.name for spec in program.params}
    tensors = {name: nn.Parameter(value) if name in trained else value for name, value in made.items()}
    module = rebuild(program, tensors, where, train=True)
    leaves = []
    for port, wire in zip(program.inputs, example_inputs(program, rows), strict=True):
        leaf = torch.from_numpy(np.array(wire.numpy())).to(where)
        leaves.append(leaf.requires_grad_() if port.grad else leaf)
    masks = [torch.from_numpy(dropout_mask(d, 0, [0] * rows, range(rows))).to(where) for d in program.dropouts]
    outputs = module(*leaves, *masks)
    answers = [_summary(f"output {p.name}", o) for p, o in zip(program.outputs, outputs, strict=True)]
    if program.loss is not None:
        target = torch.from_numpy(np.array(example_targets(program, rows).numpy())).to(where)
        loss, _, _ = loss_and_scores(program.loss, outputs[0], target)
    else:
        # a smooth function of every output, so that no gradient vanishes by symmetry
        loss = sum(o.square().sum() for p, o in zip(program.outputs, outputs, strict=True) if p.grad)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
        answers.append(_summary("loss", loss.reshape(1)))
    for port, leaf in zip(program.inputs, leaves, strict=True):
        if leaf.grad is not None:
            answers.append(_summary(f"gradient of {port.name}", leaf.grad))
    total = [tensors[s.name].grad for s in program.params]
    gradients = [g for g in total if g is not None]
    if gradients:
        answers.append(_summary("gradient of the weights", *gradients))
    return answers


def _summary(name: str, *tensors: torch.Tensor) -> Answer:
    """Of tensors laid end to end, without laying them so: they may be a large part of a device's memory."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    ends = list(itertools.accumulate(piece.numel() for piece in flat))
    places = np.linspace(0, max(0, ends[-1] - 1), min(VALUES, ends[-1])).astype(int)
    found = [next((piece, at - end) for piece, end in zip(flat, ends, strict=True) if at < end) for at in places]
    return Answer(
        name=name,
        norm=math.hypot(*(float(torch.linalg.vector_norm(piece)) for piece in flat)),
        values=tuple(float(piece[at]) for piece, at in found),
    )


def verify(program: StageProgram, device: torch.device | None = None) -> None:
    """Repeat the known-answer test on this device.

    Raises:
        ProgramError: a tensor differs by more than rounding; names it and the difference.
    """
    if program.known is None:
        return
    dtype = next((p.dtype for p in (*program.outputs, *program.inputs) if p.dtype.startswith("float")), "float32")
    tolerance = TOLERANCE.get(dtype, 2e-2)
    for want, have in zip(program.known.answers, run_example(program, program.known.rows, device), strict=True):
        scale = max(abs(want.norm), 1e-6)
        worst = max([abs(want.norm - have.norm), *(abs(a - b) for a, b in zip(want.values, have.values, strict=True))])
        if want.name != have.name or not worst <= tolerance * scale:
            raise ProgramError(
                f"This device computes {want.name} wrongly: it is off by {worst / scale:.1e} of its norm, "
                f"{tolerance:.0e} is allowed.",
                "Update torch on this device, or leave it out of the job.",
            )
