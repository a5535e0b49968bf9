"""A model in layers: what the planner weighs, and the stage program of any run of layers."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from asteroid_coordinator.model.cuts import Cut, Order, coarsen, find_cuts, kept_bytes, node_flops
from asteroid_coordinator.model.export import EXAMPLE_ROWS, Exported, export
from asteroid_coordinator.model.known import known_answer
from asteroid_coordinator.model.zoo import Chosen, choose
from asteroid_core.data.source import Source
from asteroid_core.errors import ProgramError
from asteroid_core.profile import LayerInfo
from asteroid_core.program import Dropout, LossSpec, Port, Row, StageProgram, TensorSpec
from asteroid_core.spec import ModelSpec
from asteroid_core.torch_graph import encode, operator_name

Arrays = Mapping[str, npt.NDArray[np.generic]]

_STATISTICS = {3: "running mean", 4: "running variance"}
"""Arguments of batch norm that it writes."""


@dataclass(frozen=True)
class _Layer:
    """Nodes between two kept cuts."""

    nodes: tuple[fx.Node, ...]
    before: Cut
    after: Cut


class ImportedModel:
    """A model that has been exported and cut.

    Attributes:
        name: for people.
        layers: in order; the planner's unit.
        ties: parameters that more than one layer uses, with those layers.
    """

    def __init__(self, chosen: Chosen, graph: Exported, order: Order, max_layers: int, loss: LossSpec) -> None:
        self.name = chosen.name
        self._user = chosen.module
        self._graph, self._loss = graph, loss
        self._dropped = _dropout_nodes(order)
        self._moving = frozenset(order.nodes)
        self._canonical = _canonical(chosen.module, graph)
        self._pieces = _pieces(graph, order, max_layers)
        self._used = [self._names(piece.nodes) for piece in self._pieces]
        self._roles = _roles(graph, self._canonical)
        holders: dict[str, list[int]] = {}
        for number, names in enumerate(self._used):
            for name in names:
                holders.setdefault(name, []).append(number)
        self.ties: dict[str, tuple[int, ...]] = {
            name: tuple(at) for name, at in holders.items() if len(at) > 1 and self._trains(name)
        }
        self._holders = holders
        self.layers: tuple[LayerInfo, ...] = tuple(self._info(i) for i in range(len(self._pieces)))
        self._stage = lru_cache(maxsize=None)(self._build)

    # What stages are made of

    def stage(self, lo: int, hi: int) -> StageProgram:
        """Return the program of layers ``[lo, hi)``, with its known answer.

        Raises:
            ProgramError: an operator that no program may name.
        """
        return self._stage(lo, hi)

    def nodes(self, layer: int) -> tuple[fx.Node, ...]:
        """Return the nodes of one layer, in order of execution."""
        return self._pieces[layer].nodes

    def state_names(self, lo: int, hi: int) -> frozenset[str]:
        """Names of the weights and buffers of layers ``[lo, hi)``."""
        return frozenset(name for used in self._used[lo:hi] for name in used)

    def all_state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the initial weights, buffers and constants of all layers."""
        names = self.state_names(0, len(self._pieces))
        return {name: self._tensor(name).detach().cpu().numpy().copy() for name in sorted(names)}

    def size_of(self, name: str) -> int:
        """Bytes of a weight or buffer."""
        value = self._tensor(name)
        return value.numel() * value.element_size()

    def export_state(self, state: Arrays) -> dict[str, npt.NDArray[np.generic]]:
        """Return a trained state under the user's own parameter names; it loads with ``strict=True``.

        What no layer uses keeps its initial value; tied names all get the value of the one that was trained.
        """
        out: dict[str, npt.NDArray[np.generic]] = {}
        for name, value in self._user.state_dict().items():
            canonical = self._canonical.get(name, name)
            trained = state.get(canonical)
            array = value.detach().cpu().numpy() if trained is None else trained
            out[name] = np.array(array).reshape(tuple(value.shape))
        return out

    # Building

    def _build(self, lo: int, hi: int) -> StageProgram:
        before, after = self._pieces[lo].before, self._pieces[hi - 1].after
        nodes = [n for piece in self._pieces[lo:hi] for n in piece.nodes]
        builder = _Builder(self._graph, self._canonical, self._dropped, self._moving, before.live)
        for node in nodes:
            builder.copy(node)
        last = hi == len(self._pieces)
        names = [builder.value(n) for n in after.live]
        rows = (*builder.rows, ("output", "output", [{"node": n} for n in names], {}))
        program = StageProgram(
            model=self.name,
            lo=lo,
            hi=hi,
            layers=tuple(tuple(sorted(used)) for used in self._used[lo:hi]),
            inputs=tuple(self._port(n) for n in before.live),
            outputs=tuple(self._port(n) for n in after.live),
            tensors=tuple(self._spec(name, lo, hi) for name in builder.tensors),
            dropouts=tuple(builder.dropouts),
            nodes=rows,
            loss=self._loss if last else None,
        )
        return program.model_copy(update={"known": known_answer(program)})

    def _port(self, node: fx.Node) -> Port:
        value = node.meta["val"]
        return Port(
            name=node.name,
            dtype=str(value.dtype).removeprefix("torch."),
            shape=tuple(int(s) for s in value.shape[1:]),
            grad=value.is_floating_point() and node.op != "placeholder",
        )

    def _spec(self, name: str, lo: int, hi: int) -> TensorSpec:
        value = self._tensor(name)
        elsewhere = any(not lo <= layer < hi for layer in self._holders.get(name, ()))
        return TensorSpec.model_validate(
            {
                "name": name,
                "shape": tuple(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."),
                "role": self._roles[name],
                "trainable": self._trains(name),
                "shared": elsewhere and self._trains(name),
            }
        )

    def _tensor(self, name: str) -> torch.Tensor:
        return _attribute(self._graph.module, name)

    def _trains(self, name: str) -> bool:
        value = self._tensor(name)
        return isinstance(value, nn.Parameter) and value.requires_grad

    def _names(self, nodes: Iterable[fx.Node]) -> tuple[str, ...]:
        builder = _Builder(self._graph, self._canonical, self._dropped, self._moving, ())
        for node in nodes:
            builder.require(node)
        return tuple(builder.tensors)

    def _info(self, number: int) -> LayerInfo:
        piece = self._pieces[number]
        own = [self._tensor(n) for n in self._used[number] if self._holders[n][0] == number]
        trained = [t for t in own if isinstance(t, nn.Parameter) and t.requires_grad]
        ports = [self._port(n) for n in piece.after.live]
        sizes = [int(np.prod(p.shape)) * _itemsize(p.dtype) for p in ports]
        return LayerInfo(
            name=piece.nodes[0].name if piece.nodes else f"layer{number}",
            parameter_bytes=sum(t.numel() * t.element_size() for t in own),
            trainable_bytes=sum(t.numel() * t.element_size() for t in trained),
            output_bytes=sum(sizes),
            gradient_bytes=sum(s for s, p in zip(sizes, ports, strict=True) if p.grad),
            activation_bytes=int(sum(kept_bytes(n) for n in piece.nodes)),
            flops=sum(node_flops(n) for n in piece.nodes),
        )


class _Builder:
    """Copies nodes into the rows of a program, with everything that they need."""

    def __init__(
        self,
        graph: Exported,
        canonical: Mapping[str, str],
        dropped: frozenset[fx.Node],
        moving: frozenset[fx.Node],
        live: tuple[fx.Node, ...],
    ) -> None:
        self._graph, self._canonical, self._dropped, self._moving = graph, canonical, dropped, moving
        self.rows: list[Row] = []
        self.tensors: dict[str, None] = {}
        self.dropouts: list[Dropout] = []
        self._done: dict[fx.Node, str] = {}
        self._first = live[0] if live else None
        self._size: str | None = None
        for node in live:
            self.rows.append((node.name, "input", None, {}))
            self._done[node] = node.name

    def value(self, node: fx.Node) -> str:
        """Name of a node that is there already (an input that rides along, or something computed here)."""
        return self._done[node]

    def require(self, node: fx.Node) -> None:
        """Note the weights that a node uses, directly or through values that are made again."""
        for parent in node.all_input_nodes:
            if parent.op == "get_attr":
                self.tensors[self._name(parent)] = None
            elif parent.op == "call_function" and parent not in self._done and parent not in self._moving:
                self._done[parent] = parent.name
                self.require(parent)

    def _name(self, node: fx.Node) -> str:
        target = str(node.target)
        return self._canonical.get(target, target)

    def copy(self, node: fx.Node) -> str:
        """Add a node and what it needs; returns its name in the program."""
        if node in self._done:
            return self._done[node]
        if self._is_batch(node):
            return self._batch_size(node)
        if node.op == "get_attr":
            name = self._name(node)
            self.tensors[name] = None
            self.rows.append((node.name, "tensor", name, {}))
        elif node.op == "call_function":
            for parent in node.all_input_nodes:
                self.copy(parent)
            self._call(node)
        else:
            raise ProgramError(f"The value {node.name} is needed behind a cut that it does not cross.")
        self._done[node] = node.name
        return node.name

    def _is_batch(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.SymInt) and value.node.expr == self._graph.batch

    def _batch_size(self, node: fx.Node) -> str:
        if self._size is None:
            assert self._first is not None
            self._size = node.name
            args = [{"node": self._done[self._first]}, 0]
            self.rows.append((node.name, "aten.sym_size.int", args, {}))
        self._done[node] = self._size
        return self._size

    def _call(self, node: fx.Node) -> None:
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        if node in self._dropped:
            self._dropout(node, args)
            return
        self.rows.append((node.name, _operator(node), args, kwargs))

    def _dropout(self, node: fx.Node, args: list[Any]) -> None:
        p = float(node.args[1])  # type: ignore[arg-type]
        train = bool(node.args[2]) if len(node.args) > 2 else True
        if p == 0.0 or not train:
            self.rows.append((node.name, "aten.alias.default", args[:1], {}))
            return
        if not self._graph.is_batched(node) or p >= 1.0:
            raise ProgramError(
                f"The dropout {node.name} does not work on (samples, ...), so its mask cannot belong to the sample.",
                "Apply dropout to tensors whose first dimension is the batch.",
            )
        value = node.meta["val"]
        dropout = Dropout(
            node=node.name,
            id=zlib.crc32(node.name.encode()),
            p=p,
            shape=tuple(int(s) for s in value.shape[1:]),
            dtype=str(value.dtype).removeprefix("torch."),
        )
        self.rows.append((node.name, "dropout", [args[0], len(self.dropouts)], {}))
        self.dropouts.append(dropout)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"node": self._done[value]}
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, slice):
            return {"slice": [self._argument(v) for v in (value.start, value.stop, value.step)]}
        return encode(value)


def _operator(node: fx.Node) -> str:
    """Name of a node's operator; writes to activations become their plain forms, since a cut may lie before them."""
    name = operator_name(node.target)
    kind, op, *rest = name.split(".")
    first = node.args[0] if node.args else None
    if (
        kind == "aten"
        and op.endswith("_")
        and not op.endswith("__")
        and isinstance(first, fx.Node)
        and first.op != "get_attr"
    ):
        later = False
        seen = False
        for user in first.graph.nodes:
            later = later or (seen and first in user.all_input_nodes)
            seen = seen or user is node
        if later:
            raise ProgramError(
                f"The model writes into {first.name} ({name}) and uses it again.", "Use the form that does not write."
            )
        return ".".join([kind, op[:-1], *rest])
    if kind == "aten" and op == "scaled_dot_product_attention":
        p = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        if isinstance(p, (int, float)) and p > 0:
            raise ProgramError(
                f"The fused attention {node.name} has dropout inside, which cannot belong to the sample.",
                "Use the eager form of attention (transformers: attn_implementation='eager'), or dropout 0 there.",
            )
    return name


def _dropout_nodes(order: Order) -> frozenset[fx.Node]:
    return frozenset(n for n in order.nodes if str(n.target).startswith("aten.dropout"))


def _attribute(module: nn.Module, name: str) -> torch.Tensor:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise ProgramError(f"The model has {name}, which is a {type(value).__name__} and not a tensor.")
    return value


def _canonical(user: nn.Module, graph: Exported) -> dict[str, str]:
    """Map every name of a tied parameter to the first one (names of the user's module and of the graph alike)."""
    out: dict[str, str] = {}
    for module in (user, graph.module):
        first: dict[int, str] = {}
        for name, value in module.named_parameters(remove_duplicate=False):
            owner = first.setdefault(id(value), name)
            if owner != name:
                out[name] = owner
    return out


def _roles(graph: Exported, canonical: Mapping[str, str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for node in graph.module.graph.nodes:
        if node.op == "get_attr":
            name = canonical.get(str(node.target), str(node.target))
            is_parameter = isinstance(_attribute(graph.module, name), nn.Parameter)
            roles.setdefault(name, "param" if is_parameter else "constant")
    for node in graph.module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target is torch.ops.aten.batch_norm.default:
            for position in _STATISTICS:
                argument = node.args[position]
                if isinstance(argument, fx.Node) and argument.op == "get_attr":
                    roles[str(argument.target)] = "statistic"
        elif node.target._schema.is_mutable and node.args:
            argument = node.args[0]
            if isinstance(argument, fx.Node) and argument.op == "get_attr":
                roles[str(argument.target)] = "counter"
    return roles


def _pieces(graph: Exported, order: Order, max_layers: int) -> list[_Layer]:
    """Cut at every legal place, then merge the lightest neighbours until few enough remain."""
    cuts = list(order.cuts)
    whole = [order.nodes[a.position : b.position] for a, b in itertools.pairwise(cuts)]
    flops = [sum(node_flops(n) for n in nodes) for nodes in whole]
    params = [float(sum(_weight_elements(n) for n in nodes)) for nodes in whole]
    weights = [
        f / (sum(flops) or 1.0) + 0.5 * p / (sum(params) or 1.0) + 1e-6 for f, p in zip(flops, params, strict=True)
    ]
    bytes_ = [float(sum(_live_bytes(graph, n) for n in cut.live)) for cut in cuts[1:-1]]
    kept = [cuts[0], *(cuts[i + 1] for i in coarsen(weights, bytes_, max_layers)), cuts[-1]]
    return [_Layer(order.nodes[a.position : b.position], a, b) for a, b in itertools.pairwise(kept)]


def _weight_elements(node: fx.Node) -> int:
    return sum(int(p.meta["val"].numel()) for p in node.all_input_nodes if p.op == "get_attr" and "val" in p.meta)


def _live_bytes(graph: Exported, node: fx.Node) -> int:
    size = graph.size(node) or (1,)
    return int(np.prod([int(s) for s in size[1:]])) * int(node.meta["val"].element_size())


def _itemsize(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def import_model(spec: ModelSpec, source: Source, *, dtype: str, seed: int, max_layers: int) -> ImportedModel:
    """Choose, export and cut a model for a data set.

    Raises:
        InputError: unknown model or options, or the model does not take these samples.
        ProgramError: it cannot be exported or cut.
    """
    chosen = choose(spec, source, seed)
    module = chosen.module.to(getattr(torch, dtype))
    example = [_example(p.dtype, p.shape, dtype, chosen.vocabulary) for p in chosen.inputs]
    graph = export(module, example, chosen.name)
    order = find_cuts(graph)
    return ImportedModel(chosen, graph, order, max_layers, chosen.loss)


def _example(kind: str, shape: tuple[int, ...], dtype: str, vocabulary: int) -> torch.Tensor:
    if kind.startswith("float"):
        return torch.zeros((EXAMPLE_ROWS, *shape), dtype=getattr(torch, dtype))
    return torch.randint(0, max(1, vocabulary), (EXAMPLE_ROWS, *shape), dtype=getattr(torch, kind))
