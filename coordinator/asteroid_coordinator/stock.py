"""What workers get from the coordinator: programs, and the state of the start round as far as no device keeps it.

The state comes from the model's initial values or a checkpoint. For the baseline "heavy rescheduling", in which all
weights travel through the coordinator, it is first collected from the devices; questions wait until it is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from asteroid_core.errors import WireError
from asteroid_core.held import Held, of_names, sources
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Plan, Share, Stage
from asteroid_core.wire.safe import Array, pack, pack_names, read_names, unpack
from asteroid_core.wire.tensor import ASK_STATE, Kind, Tag, Tensor


@dataclass(frozen=True)
class StatePart:
    """A stage's state, as its leader sent it for a checkpoint, or a device because it was asked."""

    source: str
    generation: int
    rounds: int
    data: memoryview
    answer: bool = False


@dataclass(frozen=True)
class Question:
    """A worker asks for its program, or for the state of some weights and buffers."""

    source: str
    tag: Tag
    data: memoryview


@dataclass
class Stock:
    """What one generation's workers are given.

    Attributes:
        generation: of the plan.
        start_round: whose state is given.
        programs: of each device.
        load: reads the state, when it is first asked for.
    """

    generation: int = 0
    start_round: int = 0
    programs: Mapping[str, bytes] = field(default_factory=dict)
    load: Callable[[], Mapping[str, Array]] = dict
    _state: Mapping[str, Array] | None = None
    _missing: dict[str, frozenset[str]] = field(default_factory=dict)
    _collected: dict[str, Array] = field(default_factory=dict)
    _waiting: list[Question] = field(default_factory=list)

    def sha256(self, device: str) -> str:
        """Names a device's program."""
        return hashlib.sha256(self.programs[device]).hexdigest()

    def collect(self, link: TensorLink, wanted: Mapping[str, frozenset[str]]) -> None:
        """Ask devices for the state of these weights and buffers, before anybody is given any."""
        self._missing = dict(wanted)
        for device, names in wanted.items():
            tag = Tag(Kind.ASK, self.generation, self.start_round, index=ASK_STATE)
            link.send(device, tag, Tensor.of_bytes(pack_names(sorted(names))))

    def collected(self, link: TensorLink, source: str, data: memoryview) -> None:
        """Take a device's answer.

        Raises:
            WireError: it was not asked, or does not have what it should have.
        """
        names = self._missing.pop(source, None)
        if names is None:
            raise WireError(f"{source} sent state that it was not asked for.")
        found = of_names(unpack(data), names)
        if missing := sorted(names - found.keys()):
            raise WireError(f"{source} does not have the state of {missing[0]} after {self.start_round} rounds.")
        self._collected.update(found)
        if not self._missing:
            self._state = self._collected
            waiting, self._waiting = self._waiting, []
            for question in waiting:
                self.answer(link, question)

    def answer(self, link: TensorLink, question: Question) -> None:
        """Send what was asked for; questions of older generations are dropped.

        Raises:
            WireError: the question is none.
            AsteroidError: the state cannot be read.
        """
        tag = question.tag
        if tag.generation != self.generation or question.source not in self.programs:
            return
        if tag.index != ASK_STATE:
            program = Tensor.of_bytes(self.programs[question.source])
            link.send(question.source, Tag(Kind.PROGRAM, self.generation), program)
            return
        if self._missing:
            self._waiting.append(question)
            return
        if self._state is None:
            self._state = self.load()
        found = of_names(self._state, read_names(question.data))
        link.send(question.source, Tag(Kind.STATE, self.generation, self.start_round), Tensor.of_bytes(pack(found)))


def asked(
    held: frozenset[Held], rounds: int, layers: int, names: Callable[[int, int], frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Return which weights and buffers each device is asked for, so that the coordinator has them all.

    Args:
        held: what the devices keep.
        rounds: of the state.
        layers: of the model.
        names: of what belongs to a run of layers.
    """
    everything = Stage(lo=0, hi=layers, shares=(Share(device=COORDINATOR, samples=1),), warm_up=1)
    whole = Plan(generation=0, stages=(everything,), micro_size=1, micro_count=1)
    out: dict[str, frozenset[str]] = {}
    for source in sources(held, rounds, whole, COORDINATOR)[COORDINATOR]:
        out[source.device] = out.get(source.device, frozenset()) | names(source.lo, source.hi)
    return out
