"""Where a graph may be cut, and the layers between the cuts.

A cut is legal where every live tensor has the batch as its first dimension: then rows of samples can be sent anywhere.
Values that do not depend on the inputs (position numbers, masks, sizes) are made again in each stage that uses them, so
they never cross. Several tensors may cross one cut (skip connections ride along).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from asteroid_coordinator.model.export import EXAMPLE_ROWS, Exported
from asteroid_core.errors import ProgramError

MAX_LIVE = 8
"""Tensors that may cross one cut; more is a place where nobody would cut."""


@dataclass(frozen=True)
class Cut:
    """A position between two nodes of the order, and the tensors alive there."""

    position: int
    live: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Order:
    """The nodes that compute from the inputs, in execution order, and the cuts between them.

    Attributes:
        nodes: what stages are made of; everything else is made again where it is used.
        cuts: from the entrance (position 0) to the exit (position len(nodes)).
    """

    nodes: tuple[fx.Node, ...]
    cuts: tuple[Cut, ...]


def depends_on_inputs(graph: Exported) -> set[fx.Node]:
    """Return the nodes whose tensor depends on the values of the inputs (a size alone does not count)."""
    out: set[fx.Node] = set(graph.inputs)
    for node in graph.module.graph.nodes:
        if node.op != "call_function" or isinstance(node.meta.get("val"), (torch.SymInt, int, torch.SymBool, bool)):
            continue
        if any(parent in out for parent in node.all_input_nodes):
            out.add(node)
    return out


def find_cuts(graph: Exported) -> Order:
    """Return the order of nodes and every legal cut.

    Raises:
        ProgramError: not even entrance and exit are legal.
    """
    moving = depends_on_inputs(graph)
    counters = {n for n in graph.module.graph.nodes if _touches_buffer_only(n)}
    nodes = tuple(n for n in graph.module.graph.nodes if n.op == "call_function" and (n in moving or n in counters))
    index = {n: i for i, n in enumerate(nodes)}
    last_use = dict.fromkeys(moving, -1)
    for i, node in enumerate(nodes):
        for parent in _sources(node, moving):
            last_use[parent] = max(last_use[parent], i)
    last_use[graph.output] = len(nodes)
    cuts: list[Cut] = []
    born = [(index.get(n, -1), n) for n in moving if isinstance(n.meta.get("val"), torch.Tensor) or n in index]
    for position in range(len(nodes) + 1):
        live = tuple(
            sorted((n for b, n in born if b < position <= last_use[n]), key=lambda n: (index.get(n, -1), n.name))
        )
        if not live or len(live) > MAX_LIVE or not all(graph.is_batched(n) for n in live):
            continue
        if cuts and all(n in counters for n in nodes[cuts[-1].position : position]):
            if position < len(nodes):
                continue  # a layer that only counts is none
            cuts.pop()
        cuts.append(Cut(position, live))
    if len(cuts) < 2 or cuts[0].position != 0 or cuts[-1].position != len(nodes):
        raise ProgramError(
            f"The model's output {graph.output.name} does not have the samples as its first dimension.",
            "Return one tensor of shape (samples, ...).",
        )
    return Order(nodes, tuple(cuts))


def _touches_buffer_only(node: fx.Node) -> bool:
    """Whether the node writes a buffer without reading the inputs (batch norm's counter)."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    first = node.args[0] if node.args else None
    return str(node.target).split(".")[1].endswith("_") and isinstance(first, fx.Node) and first.op == "get_attr"


def _sources(node: fx.Node, moving: set[fx.Node]) -> set[fx.Node]:
    """Moving tensors that the node reads, also through values that are made again (except plain sizes)."""
    out: set[fx.Node] = set()
    todo = list(node.all_input_nodes)
    while todo:
        parent = todo.pop()
        if parent in moving:
            out.add(parent)
        elif parent.op == "call_function" and not _is_batch_size(parent):
            todo.extend(parent.all_input_nodes)
    return out


def _is_batch_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt) and "sym_size" in str(node.target)


def node_flops(node: fx.Node) -> float:
    """Estimate the forward floating-point operations of a node for one sample."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0.0
    out = _per_sample(value)
    name = str(node.target)
    if "conv" in name and len(node.args) > 1 and isinstance(node.args[1], fx.Node):
        weight = node.args[1].meta["val"]
        return 2.0 * out * math.prod(int(s) for s in weight.shape[1:])
    if "linear" in name and isinstance(node.args[1], fx.Node):
        return 2.0 * out * int(node.args[1].meta["val"].shape[1])
    if any(word in name for word in ("matmul", "bmm", "mm.default")) and isinstance(node.args[0], fx.Node):
        return 2.0 * out * int(node.args[0].meta["val"].shape[-1])
    return out


def kept_bytes(node: fx.Node) -> float:
    """Estimate the bytes that autograd keeps of a node's output for one sample; views cost nothing."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return 0.0
    if isinstance(node.target, torch._ops.OpOverload) and any(
        r.alias_info is not None for r in node.target._schema.returns
    ):
        return 0.0
    return _per_sample(value) * value.element_size()


def _per_sample(value: torch.Tensor) -> float:
    total = 1.0
    for size in value.shape:
        hint = size if isinstance(size, int) else size.node.hint
        total *= float(hint if hint is not None else EXAMPLE_ROWS)
    batched = any(not isinstance(s, int) for s in value.shape)
    return total / EXAMPLE_ROWS if batched else total


def coarsen(weights: list[float], boundary_bytes: list[float], limit: int) -> list[int]:
    """Choose which cuts to keep so that at most ``limit`` pieces remain.

    The lightest pair of neighbours is merged first; of equal pairs, the one with the dearer boundary.

    Args:
        weights: of each piece.
        boundary_bytes: of each inner cut (one fewer than pieces).
        limit: pieces wanted.

    Returns:
        Indices of the inner cuts that are kept, ascending.
    """
    pieces = list(weights)
    cuts = list(range(len(boundary_bytes)))
    top = max(boundary_bytes, default=0.0) or 1.0
    total = sum(weights) or 1.0
    while len(pieces) > limit:
        cost = [
            (pieces[i] + pieces[i + 1]) / total * (1.0 - 0.5 * boundary_bytes[cuts[i]] / top)
            for i in range(len(pieces) - 1)
        ]
        best = cost.index(min(cost))
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
        del cuts[best]
    return cuts
