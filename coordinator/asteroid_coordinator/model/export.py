"""From a torch module to one exported graph with a free batch dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from asteroid_core.errors import ProgramError

EXAMPLE_ROWS = 4
"""Samples of the example that a model is traced with; any number runs afterwards."""


@dataclass(frozen=True)
class Exported:
    """A graph of ATen calls; weights are ``get_attr`` nodes.

    Attributes:
        module: the graph and its weights.
        batch: the symbol of the batch dimension.
        inputs: placeholders in order.
        output: the node whose value the model returns.
    """

    module: fx.GraphModule
    batch: Any
    inputs: tuple[fx.Node, ...]
    output: fx.Node

    def size(self, node: fx.Node) -> tuple[Any, ...] | None:
        """Sizes of a node's tensor (ints and symbols), or None if it is not one tensor."""
        value = node.meta.get("val")
        return tuple(value.shape) if isinstance(value, torch.Tensor) else None

    def is_batched(self, node: fx.Node) -> bool:
        """Whether the node is a tensor whose first dimension, and no other, is the batch."""
        size = self.size(node)
        if not size or isinstance(size[0], int) or size[0].node.expr != self.batch:
            return False
        return all(isinstance(s, int) for s in size[1:])


def export(module: nn.Module, example: Sequence[torch.Tensor], name: str) -> Exported:
    """Trace a module in training mode.

    Args:
        module: what to train; its parameters keep their names.
        example: inputs of EXAMPLE_ROWS samples.
        name: for sentences.

    Raises:
        ProgramError: it cannot be traced; names the reason.
    """
    module.train()
    batch = torch.export.Dim("b", min=1, max=1 << 20)
    shapes = tuple({0: batch} for _ in example)
    try:
        program = torch.export.export(module, tuple(example), dynamic_shapes=shapes, strict=False)
        graph_module = program.module()
    except Exception as error:  # torch.export raises whatever the user's code raises, and many types of its own
        raise ProgramError(
            f"The model {name} cannot be exported: {_reason(error)}",
            "Avoid control flow that depends on values, and sizes that depend on the number of samples.",
        ) from error
    return _tidy(graph_module, name)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return f"{type(error).__name__}: {first[:300].rstrip('.')}."


def _tidy(module: fx.GraphModule, name: str) -> Exported:
    """Drop guards and assertions (their conditions are checked at every cut), and find inputs and output."""
    graph = module.graph
    for node in reversed(list(graph.nodes)):
        is_check = node.op == "call_module" or (node.op == "call_function" and "assert" in str(node.target))
        if is_check:
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output") or _writes(n))
    inputs = tuple(n for n in graph.nodes if n.op == "placeholder")
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(outputs) != 1 or not isinstance(outputs[0], fx.Node):
        raise ProgramError(
            f"The model {name} returns {len(outputs)} values, but one tensor is needed.",
            "Wrap it in a module that returns the logits only.",
        )
    first = inputs[0].meta["val"].shape[0]
    if isinstance(first, int):
        raise ProgramError(
            f"The model {name} fixes the number of samples to {first} while it is traced.",
            "Do not use the batch size as a number (len(x), int(x.shape[0])) in forward.",
        )
    return Exported(module, first.node.expr, inputs, outputs[0])


def _writes(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target._schema.is_mutable or node.target is torch.ops.aten.batch_norm.default
