"""A stage program: a run of layers as plain JSON, which a worker rebuilds from a whitelist. No torch here.

Each row of ``nodes`` is ``[name, operator, arguments, keyword arguments]``. Operators: ``input``, ``tensor`` (a weight
or buffer, by the user's own name), ``dropout`` (the worker makes its mask), ``output``, ``aten.<op>.<overload>`` and
``python.<function>`` on sizes. An argument that is another node's value is ``{"node": name}``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError

from asteroid_core.errors import ProgramError
from asteroid_core.plan import Frozen

MAX_BYTES = 64 << 20
"""Longest program that is read; the largest of the zoo has some hundred kilobytes."""

Row = tuple[str, str, Any, dict[str, Any]]


class Port(Frozen):
    """A tensor that crosses a cut (or enters or leaves the model).

    Attributes:
        name: of the node that makes it.
        dtype: of its elements.
        shape: sizes behind the batch dimension.
        grad: whether a gradient comes back.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    grad: bool


class TensorSpec(Frozen):
    """A weight or buffer.

    Attributes:
        name: the user's own name.
        shape: its sizes.
        dtype: of its elements.
        role: ``param``; ``statistic`` (running mean or variance); ``counter``; or ``constant``.
        trainable: whether it gets a gradient.
        shared: a parameter that other stages hold too; it is reduced in a group of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["param", "statistic", "counter", "constant"] = "param"
    trainable: bool = True
    shared: bool = False


class Dropout(Frozen):
    """A dropout: its mask belongs to the sample, see ``randomness``.

    Attributes:
        node: name of the node in the whole model.
        id: crc32 of that name.
        p: probability of zero.
        shape: of the mask, behind the batch dimension.
        dtype: of the mask.
    """

    node: str
    id: int
    p: float = Field(ge=0, lt=1)
    shape: tuple[int, ...]
    dtype: str


class LossSpec(Frozen):
    """What the last stage minimises; the sum over samples is divided by the mini-batch's count."""

    kind: Literal["cross_entropy", "mse"] = "cross_entropy"
    ignore_index: int = -100


class Answer(Frozen):
    """Summary of one tensor of the known-answer test: its L2 norm and some of its elements."""

    name: str
    norm: float
    values: tuple[float, ...]


class KnownAnswer(Frozen):
    """What a right device computes on the seeded example, forward and backward."""

    rows: int
    answers: tuple[Answer, ...]


class StageProgram(Frozen):
    """A run of layers ``[lo, hi)`` of a model, ready to be rebuilt anywhere."""

    schema_version: Literal[1] = 1
    model: str
    lo: int
    hi: int
    layers: tuple[tuple[str, ...], ...] = ()
    """names of the weights and buffers of each layer, so that a device can ask for some layers' state only"""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    tensors: tuple[TensorSpec, ...]
    dropouts: tuple[Dropout, ...]
    nodes: tuple[Row, ...]
    loss: LossSpec | None = None
    known: KnownAnswer | None = None

    def names(self, lo: int, hi: int) -> frozenset[str]:
        """Weights and buffers of layers ``[lo, hi)``, which must be layers of this program."""
        return frozenset(name for layer in self.layers[lo - self.lo : hi - self.lo] for name in layer)

    @property
    def params(self) -> tuple[TensorSpec, ...]:
        """Trainable parameters, in the order in which their gradients are laid out."""
        return tuple(t for t in self.tensors if t.role == "param" and t.trainable)

    @property
    def statistics(self) -> tuple[TensorSpec, ...]:
        """Running statistics, in the order in which a group averages them."""
        return tuple(t for t in self.tensors if t.role == "statistic")

    def to_bytes(self) -> bytes:
        """Return the canonical JSON; its SHA-256 names the program."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), sort_keys=True).encode()

    def shape_only(self) -> StageProgram:
        """The same computation without what does not change its time: equal layers become equal programs."""
        names: dict[str, str] = {}

        def short(name: str) -> str:
            return names.setdefault(name, f"n{len(names)}")

        def rename(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [rename(v) for v in value]
            if isinstance(value, dict) and "node" in value:
                return {"node": short(value["node"])}
            return value

        weights = {t.name: f"w{i}" for i, t in enumerate(self.tensors)}
        nodes = tuple(
            (short(name), op, weights[args] if op == "tensor" else rename(args), {k: rename(v) for k, v in kw.items()})
            for name, op, args, kw in self.nodes
        )
        return self.model_copy(
            update={
                "model": "",
                "lo": 0,
                "hi": 1,
                "layers": (),
                "inputs": tuple(p.model_copy(update={"name": short(p.name)}) for p in self.inputs),
                "outputs": tuple(p.model_copy(update={"name": short(p.name)}) for p in self.outputs),
                "tensors": tuple(t.model_copy(update={"name": weights[t.name], "shared": False}) for t in self.tensors),
                "dropouts": tuple(d.model_copy(update={"node": "", "id": 0}) for d in self.dropouts),
                "nodes": nodes,
                "known": None,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, sha256: str | None = None) -> StageProgram:
        """Read a program and check it against the hash that the assignment names.

        Raises:
            ProgramError: too long, another hash, or not a program.
        """
        if len(data) > MAX_BYTES:
            raise ProgramError(f"A stage program of {len(data)} bytes is over the limit of {MAX_BYTES}.")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ProgramError(
                "The stage program is not the one that the assignment names (its SHA-256 differs).",
                "Check who may write below asteroid-data on the broker, then resume the job.",
            )
        try:
            return cls.model_validate_json(data)
        except (ValidationError, ValueError, RecursionError) as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise ProgramError(
                f"The stage program cannot be read: {first}.", "Upgrade the older one of coordinator and agent."
            ) from None
