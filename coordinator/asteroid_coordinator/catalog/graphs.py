"""From an exported graph to the operators of its layers. The only part of the catalog that needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import fx

from asteroid_coordinator.catalog.work import Kind, LayerWork, ModelWork, Operator, TiedWork
from asteroid_coordinator.model.cuts import node_flops
from asteroid_coordinator.model.export import EXAMPLE_ROWS
from asteroid_coordinator.model.importer import ImportedModel

_TWICE = ("norm", "softmax")
"""Operators that read their input a second time: first for the statistics, then to use them."""
_LOSS_OPERATORS = 2
"""Cross entropy: logarithm of softmax, then the pick of the target."""


def work_of(model: ImportedModel, samples: str, made: str) -> ModelWork:
    """Return what the layers of a model ask of a device.

    Args:
        model: exported and cut.
        samples: what a sample is, for people.
        made: how the numbers are made, for people.
    """
    operators = [list(_operators(model.nodes(number))) for number in range(len(model.layers))]
    logits = model.layers[-1].output_bytes
    operators[-1] += [Operator("memory", 0.0, 2 * logits)] * _LOSS_OPERATORS
    return ModelWork(
        name=model.name,
        samples=samples,
        made=made,
        layers=tuple(
            LayerWork(info=info, operators=tuple(found)) for info, found in zip(model.layers, operators, strict=True)
        ),
        tied={name: TiedWork(layers=layers, size=model.size_of(name)) for name, layers in model.ties.items()},
    )


def _operators(nodes: Iterable[fx.Node]) -> Iterable[Operator]:
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or _is_view(node):
            continue
        if not _is_moving(node):
            yield Operator("memory", 0.0, 0)  # a counter: it takes a launch, and has no backward
            continue
        weights = [p for p in node.all_input_nodes if p.op == "get_attr"]
        trained = sum(_size(p.meta["val"]) for p in weights if _trains(p))
        out = _moved(value)
        read = sum(_moved(p.meta["val"]) for p in node.all_input_nodes if _is_moving(p))
        if any(word in str(node.target) for word in _TWICE):
            read *= 2
        held = sum(_size(p.meta["val"]) for p in weights)
        if "embedding" in str(node.target):
            read, held = read + out, 0  # only the rows that are looked up
        yield Operator(kind_of(node), node_flops(node), int(read + out), held, trained)


def kind_of(node: fx.Node) -> Kind:
    """What kind of work a node is."""
    name = str(node.target)
    if "conv" in name:
        groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
        weight = node.args[1]
        assert isinstance(weight, fx.Node)
        one_channel = int(weight.meta["val"].shape[1]) == 1
        return "depthwise" if one_channel and isinstance(groups, int) and groups > 1 else "conv"
    if any(word in name for word in ("linear", "matmul", "bmm", "mm.default", "attention")):
        return "matmul"
    return "memory"


def _is_view(node: fx.Node) -> bool:
    """Whether nothing is computed: the result shares its memory with an input and is not written to."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if str(node.target).startswith("aten.contiguous"):
        return False  # it follows a transposition, and then it copies
    infos = [r.alias_info for r in node.target._schema.returns if r.alias_info is not None]
    return bool(infos) and not any(info.is_write for info in infos)


def _trains(node: fx.Node) -> bool:
    value: object = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad


def _is_moving(node: fx.Node) -> bool:
    """Whether a node's tensor has the samples in it."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and any(not isinstance(s, int) for s in value.shape)


def _size(value: torch.Tensor) -> int:
    return math.prod(int(s) for s in value.shape) * value.element_size()


def _moved(value: torch.Tensor) -> float:
    """Bytes of a tensor for one sample."""
    total = float(value.element_size())
    for size in value.shape:
        total *= size if isinstance(size, int) else (size.node.hint or EXAMPLE_ROWS)
    batched = any(not isinstance(s, int) for s in value.shape)
    return total / EXAMPLE_ROWS if batched else total
