"""Rebuilds a stage program as a torch graph, from a whitelist of operators; coordinator and agents use it.

Needs torch. Nothing is unpickled or evaluated: a row names an operator that is on the list, or the program is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from asteroid_core.errors import ProgramError
from asteroid_core.program import LossSpec, StageProgram

PYTHON: Mapping[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.getitem, operator.neg,
        operator.mod, operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
        operator.and_, operator.or_, operator.not_, math.ceil, math.floor,
        torch.sym_not, torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min,
    )
}  # fmt: skip
"""Functions on sizes (and on tuples) that a program may call."""

ATEN = frozenset(
    """
    __and__ __or__ __xor__ _log_softmax _softmax _to_copy _unsafe_view abs adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_max_pool2d add add_ addcdiv addcmul addmm alias all amax amin any arange argmax avg_pool1d
    avg_pool2d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bmm cat ceil celu chunk clamp clamp_max
    clamp_min clone constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d cos
    cumsum detach diag_embed diff div div_ dot einsum elu embedding empty_like eq erf exp expand expand_as
    expm1 fill flatten flip floor floor_divide full full_like gather ge gelu glu group_norm gt hardsigmoid
    hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ index index_select instance_norm isinf isnan
    layer_norm le leaky_relu leaky_relu_ lift_fresh_copy linalg_vector_norm linear log log1p log_softmax
    logical_and logical_not logical_or lt masked_fill matmul matrix_exp max max_pool1d max_pool2d maximum mean
    min minimum mish mm movedim mul mul_ narrow ne neg new_ones new_zeros norm ones ones_like outer pad
    permute pixel_shuffle pow prelu reciprocal relu relu6 relu_ remainder repeat repeat_interleave reshape
    rms_norm roll rsqrt rsub scalar_tensor scaled_dot_product_attention select selu sigmoid sigmoid_ sign silu
    silu_ sin slice softmax softplus split split_with_sizes sqrt square squeeze stack std sub sub_ sum
    swapaxes sym_size t tanh tanh_ to transpose tril triu type_as unbind unflatten unfold unsafe_chunk
    unsafe_split unsqueeze upsample_bilinear2d upsample_nearest2d var view view_as where zeros zeros_like
    """.split()  # noqa: SIM905 - a list of words reads better as words
)
"""ATen operators that a program may name, any overload: deterministic, and without effects outside their tensors."""

_FIXED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def encode(value: Any) -> Any:
    """Return a graph argument as JSON.

    Raises:
        ProgramError: a value that no program can carry.
    """
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, torch.device):
        return {"device": "worker"}  # the worker decides
    for key, type_ in _FIXED.items():
        if isinstance(value, type_):
            return {key: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, slice):
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    raise ProgramError(f"The model passes a {type(value).__name__} to an operator, which a stage program cannot carry.")


def operator_name(target: Any) -> str:
    """Return the name of a graph's call in a program.

    Raises:
        ProgramError: not on the whitelist; named.
    """
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        if target.namespace == "aten" and name.split(".")[1] in ATEN:
            return name
        raise foreign(name)
    name = getattr(target, "__name__", str(target))
    if PYTHON.get(name) is target:
        return f"python.{name}"
    raise foreign(name)


def foreign(name: str) -> ProgramError:
    """The sentence about an operator that is not on the whitelist."""
    return ProgramError(
        f"The operator {name} is not one that a stage program may use.",
        "Rewrite that part of the model with common torch.nn modules, or ask for the operator to be added.",
    )


def _function(name: str) -> Callable[..., Any]:
    kind, _, rest = name.partition(".")
    if kind == "python" and rest in PYTHON:
        return PYTHON[rest]
    op, _, overload = rest.partition(".")
    if kind == "aten" and op in ATEN:
        packet = getattr(torch.ops.aten, op, None)
        function = getattr(packet, overload or "default", None)
        if isinstance(function, torch._ops.OpOverload):
            return function
    raise foreign(name)


def _decode(value: Any, env: Mapping[str, Any], device: torch.device) -> Any:
    if isinstance(value, list):
        return [_decode(v, env, device) for v in value]
    if not isinstance(value, dict):
        return value
    ((key, inner),) = value.items()
    if key == "node":
        return env[inner]
    if key == "device":
        return device
    if key == "float":
        return float(inner)
    if key == "slice":
        return slice(*(_decode(v, env, device) for v in inner))
    found = getattr(torch, str(inner), None)
    if key in _FIXED and isinstance(found, _FIXED[key]):
        return found
    raise ProgramError(f"A stage program has an argument {value!r} that means nothing here.", "Upgrade this device.")


def rebuild(
    program: StageProgram, tensors: Mapping[str, torch.Tensor], device: torch.device, *, train: bool
) -> fx.GraphModule:
    """Return the program as a module: inputs, then (in training) one mask a dropout, to a tuple of outputs.

    Weights and buffers are the given tensors themselves. The evaluation form has batch norm's training flag turned, no
    dropout, and no writes to buffers.

    Raises:
        ProgramError: a foreign operator, a missing tensor, or rows that do not fit together.
    """
    root, names = torch.nn.Module(), {}
    for number, spec in enumerate(program.tensors):
        names[spec.name] = f"t{number}"
        value = tensors[spec.name]
        if isinstance(value, torch.nn.Parameter):
            root.register_parameter(f"t{number}", value)
        else:
            root.register_buffer(f"t{number}", value)
    graph = fx.Graph()
    env: dict[str, Any] = {}
    rows = list(program.nodes)
    for name, op, _, _ in rows:
        if op == "input":
            env[name] = graph.placeholder(name)
    masks = [graph.placeholder(f"mask_{i}") for i in range(len(program.dropouts))] if train else []
    try:
        for name, op, args, kwargs in rows:
            _add(graph, env, masks, names, (name, op, args, kwargs), device, train)
        graph.lint()
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ProgramError(f"The stage program does not fit together: {type(error).__name__} {error}.") from None
    return fx.GraphModule(root, graph)


def _add(
    graph: fx.Graph,
    env: dict[str, Any],
    masks: list[fx.Node],
    names: Mapping[str, str],
    row: tuple[str, str, Any, dict[str, Any]],
    device: torch.device,
    train: bool,
) -> None:
    name, op, args, kwargs = row
    if op == "input":
        return
    if op == "tensor":
        env[name] = graph.get_attr(names[args])
        return
    if op == "output":
        graph.output(tuple(_decode(args, env, device)))
        return
    values = tuple(_decode(list(args), env, device))
    if op == "dropout":
        env[name] = (
            graph.call_function(torch.ops.aten.mul.Tensor, (values[0], masks[values[1]])) if train else values[0]
        )
        return
    function = _function(op)
    if not train:
        first = values[0] if values else None
        if op.split(".")[1].endswith("_") and isinstance(first, fx.Node) and first.op == "get_attr":
            env[name] = first
            return
        if op.startswith("aten.batch_norm"):
            values = (*values[:5], False, *values[6:])
    env[name] = graph.call_function(function, values, {k: _decode(v, env, device) for k, v in kwargs.items()})


def loss_and_scores(spec: LossSpec, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """Return the summed loss, the right answers and the number of answers that count.

    Args:
        spec: cross-entropy of logits (rows, classes) or (rows, tokens, classes), or the squared error (mean over the
            elements of a sample).
        outputs: of the model.
        targets: class numbers (rows,) or (rows, tokens), ``ignore_index`` where nothing counts; or values like outputs.
    """
    if spec.kind == "mse":
        error = (outputs - targets.to(outputs.dtype)).square().flatten(1).mean(1)
        return error.sum(), 0.0, 0.0
    logits, wanted = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=spec.ignore_index, reduction="sum")
    counts = wanted != spec.ignore_index
    correct = ((logits.argmax(1) == wanted) & counts).sum()
    return loss, float(correct), float(counts.sum())
