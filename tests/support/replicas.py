"""Plans, states and programs made of numbered layers, and a network that carries tensors at once, in one thread."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from tests.support import jobs
from tests.support.worker import Waiting

from asteroid_agent.backend.base import Backend
from asteroid_core.ids import COORDINATOR
from asteroid_core.plan import Plan, Share, Stage
from asteroid_core.program import StageProgram, TensorSpec
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.messages import Assignment
from asteroid_core.wire.safe import Array
from asteroid_core.wire.tensor import Kind, Tag, Tensor


def plan(
    text: str, backups: Mapping[str, tuple[str, ...]] | None = None, generation: int = 1, predicted_s: float = 0.0
) -> Plan:
    """``a | b c``: stages of two layers each and their devices; ``backups`` by the leader of a stage."""
    stages = []
    for number, part in enumerate(text.split("|")):
        names = part.split()
        samples = [12 // len(names)] * len(names)
        stages.append(
            Stage(
                lo=2 * number,
                hi=2 * number + 2,
                shares=tuple(Share(device=d, samples=s) for d, s in zip(names, samples, strict=True)),
                warm_up=1,
                backups=(backups or {}).get(names[0], ()),
            )
        )
    return Plan(
        generation=generation, stages=tuple(stages), micro_size=12, micro_count=2, predicted_s=predicted_s or None
    )


def program(lo: int, hi: int) -> StageProgram:
    """Layers ``[lo, hi)``, each with a weight and a counter, and nothing to compute."""
    layers = tuple((f"l{i}.n", f"l{i}.w") for i in range(lo, hi))
    tensors = tuple(
        TensorSpec(name=name, shape=() if name.endswith("n") else (3,), dtype="int64" if name[-1] == "n" else "float64")
        for layer in layers
        for name in layer
    )
    return StageProgram(
        model="m", lo=lo, hi=hi, layers=layers, inputs=(), outputs=(), tensors=tensors, dropouts=(), nodes=()
    )


def state(lo: int, hi: int, rounds: int) -> dict[str, Array]:
    """What layers ``[lo, hi)`` are after so many rounds."""
    out: dict[str, Array] = {"opt/step": np.array(rounds, np.int64)}
    for i in range(lo, hi):
        out[f"l{i}.w"] = np.full(3, i + rounds / 100)
        out[f"l{i}.n"] = np.array(100 * i + rounds, np.int64)
        if rounds:
            out[f"opt/l{i}.w/momentum_buffer"] = np.full(3, -i - rounds / 100)
    return out


def same(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> bool:
    """Whether two states are equal, names, types and values."""
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and np.array_equal(found[name], wanted[name]) for name in wanted
    )


def assignment(given: Plan, agent: str, **changes: Any) -> Assignment:
    """What a device is told; its program is ``program`` of its stage."""
    spec = jobs.job("mlp")
    stage = given.stage_of(agent)
    data = program(given.stages[stage].lo, given.stages[stage].hi).to_bytes()
    told: dict[str, Any] = {
        "job": spec.name,
        "agent": agent,
        "plan": given,
        "stage": stage,
        "train": spec.train,
        "optimizer": spec.optimizer,
        "program_sha256": hashlib.sha256(data).hexdigest(),
        "program_bytes": len(data),
        "start_round": 0,
        "rounds": 100,
        "samples": 1000,
        "validation": 0,
        "checkpoint_every": 1000,
        "data_owner": COORDINATOR,
    }
    return Assignment.model_validate(told | changes)


@dataclass
class Trained:
    """Stands for a backend: its weights are overwritten in place by each round, as those of a real one."""

    lo: int
    hi: int
    now: dict[str, Array] = field(default_factory=dict)

    def after(self, rounds: int) -> None:
        """Train up to so many rounds."""
        for name, value in state(self.lo, self.hi, rounds).items():
            if name in self.now:
                self.now[name][...] = value
            else:
                self.now[name] = value

    def state(self) -> dict[str, Array]:
        """Views."""
        return dict(self.now)

    @property
    def backend(self) -> Backend:
        """For whoever asks for a backend's state only."""
        return cast("Backend", self)


@dataclass
class Port:
    """One device's end of the network; keeps what it has sent and released."""

    name: str
    network: Network
    incoming: deque[Received] = field(default_factory=deque)
    sent: list[tuple[str, Tag, Tensor]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def put(self, src: str, tag: Tag, data: bytes | memoryview) -> Received:
        """Let bytes arrive here; they are copied, as they are by a network."""
        self.network.carried += 1
        tensor = Tensor.of_bytes(bytearray(data))
        received = Received(src, "", tag, tensor, self.network.carried)
        self.incoming.append(received)
        return received

    def of_kind(self, kind: Kind) -> list[tuple[str, Tag]]:
        """Receivers and tags of what was sent of a kind."""
        return [(dst, tag) for dst, tag, _ in self.sent if tag.kind is kind]

    def set_generation(
        self, generation: int, stages: Collection[str] = (), senders: Collection[str] | None = None
    ) -> None:
        """All that is here is of one generation."""

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """It is there at once."""
        self.sent.append((dst, tag, tensor))
        self.network.port(dst).put(self.name, tag, tensor.data)

    def multicast(self, stage: str, members: Collection[str], tag: Tag, tensor: Tensor) -> None:
        """To each of them."""
        for member in members:
            self.send(member, tag, tensor)

    def receive(self, timeout: float | None = None) -> Received | None:
        """The next; if there is none, the others have a turn."""
        if not self.incoming:
            self.network.others(self.name)
        return self.incoming.popleft() if self.incoming else None

    def release(self, received: Received) -> None:
        """Note it."""
        self.released.append(received.token)

    def backlog(self, dst: str | None = None, kind: Kind | None = None) -> int:
        """Nothing is ever under way."""
        return 0


@dataclass
class Network:
    """Ports by device name.

    Attributes:
        serving: what a device does with a tensor while another one waits.
        patience: how often somebody may wait in vain, before ``Waiting`` ends the test.
    """

    ports: dict[str, Port] = field(default_factory=dict)
    serving: dict[str, Callable[[Received], object]] = field(default_factory=dict)
    patience: int = 5
    carried: int = 0

    def port(self, name: str) -> Port:
        """A device's."""
        return self.ports.setdefault(name, Port(name, self))

    def others(self, waiting: str) -> None:
        """Let each of the other devices take one tensor."""
        moved = False
        for name, serve in self.serving.items():
            port = self.port(name)
            if name != waiting and port.incoming:
                serve(port.incoming.popleft())
                moved = True
        if not moved:
            self.patience -= 1
            if self.patience < 0:
                raise Waiting
