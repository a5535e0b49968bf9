"""Gets a stage's program from the coordinator, and its state from whoever holds it, all at once.

What a device keeps itself is not sent; a program that it has already is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from asteroid_agent.worker.keeper import Keeper
from asteroid_agent.worker.mailbox import KIND_OF
from asteroid_agent.worker.ports import Received, TensorPort
from asteroid_agent.worker.snapshots import Snapshots
from asteroid_core.errors import ProgramError, WireError
from asteroid_core.held import of_names
from asteroid_core.ids import COORDINATOR
from asteroid_core.program import StageProgram
from asteroid_core.wire.messages import Assignment
from asteroid_core.wire.safe import Array, pack_names, unpack
from asteroid_core.wire.tensor import ASK_PROGRAM, ASK_STATE, Kind, Tag, Tensor

_REMEDY = "Check who may write below asteroid-data on the broker, then resume the job."


class Fetcher:
    """Fetches for one assignment.

    Args:
        assignment: names the program by its hash, and the sources of the state.
        link: to coordinator and devices.
        keeper: what is here already.
        snapshots: answers the questions that others ask meanwhile.
        control: called while waiting; raises to interrupt.
    """

    def __init__(
        self,
        assignment: Assignment,
        link: TensorPort,
        keeper: Keeper,
        snapshots: Snapshots,
        control: Callable[[], None],
    ) -> None:
        self._a, self._link, self._keeper, self._snapshots, self._control = (
            assignment, link, keeper, snapshots, control,
        )  # fmt: skip
        self.early: list[Received] = []
        """Tensors of the first rounds that came meanwhile."""
        self.nbytes = 0
        """State that came from others."""

    def program(self, have: dict[str, StageProgram]) -> StageProgram:
        """Return the program that the assignment names: one of ``have`` (by hash), or the coordinator's.

        Raises:
            ProgramError: another one came, or it cannot be read.
            WireError: somebody else sent one.
        """
        sha256 = self._a.program_sha256
        if sha256 in have:
            return have[sha256]
        self._ask(COORDINATOR, ASK_PROGRAM, ())
        received = self._await(Kind.PROGRAM, {COORDINATOR})
        data = bytes(received.tensor.data)
        self._link.release(received)
        if len(data) != self._a.program_bytes:
            raise ProgramError("The program that came is not the one that the assignment names.", _REMEDY)
        return StageProgram.from_bytes(data, sha256)

    def state(self, program: StageProgram) -> dict[str, Array]:
        """Return weights, buffers and optimizer state of the start round.

        Raises:
            ProgramError: a source does not have what it should have.
            WireError: what came is not a state, or was not asked for.
        """
        rounds = self._a.start_round
        wanted: dict[str, set[str]] = {}
        for source in self._a.sources:
            wanted.setdefault(source.device, set()).update(program.names(source.lo, source.hi))
        mine = wanted.pop(self._a.agent, set())
        for device, names in sorted(wanted.items()):
            self._ask(device, ASK_STATE, sorted(names))
        state = self._complete(self._a.agent, mine, self._keeper.find(rounds, mine)) if mine else {}
        while wanted:
            received = self._await(Kind.STATE, wanted)
            names = wanted.pop(received.src)
            self.nbytes += received.tensor.nbytes
            # Views of the buffer that came: it lives as long as they do.
            state.update(self._complete(received.src, names, of_names(unpack(received.tensor.data), names)))
            self._link.release(received)
        return state

    def _complete(self, device: str, names: set[str], state: dict[str, Array]) -> dict[str, Array]:
        missing = sorted(names - state.keys())
        if missing:
            raise ProgramError(
                f"{device} does not have the state of {missing[0]} after {self._a.start_round} rounds.",
                "Resume the job: it goes on from the last checkpoint.",
            )
        return state

    def _ask(self, device: str, what: int, names: Sequence[str]) -> None:
        tag = Tag(Kind.ASK, self._a.plan.generation, self._a.start_round, index=what)
        self._link.send(device, tag, Tensor.of_bytes(pack_names(names)))

    def _await(self, kind: Kind, senders: Collection[str]) -> Received:
        """Wait for a tensor of a kind from one of the senders; serve others, and put aside what comes early."""
        while True:
            self._control()
            received = self._link.receive(0.2)
            if received is None or self._snapshots.serve(received):
                continue
            if received.tag.kind is kind and received.src in senders:
                return received
            if received.tag.kind not in KIND_OF:
                raise WireError(
                    f"{received.src} sent a {received.tag.kind.value}, which this device has not asked it for.",
                    _REMEDY,
                )
            self.early.append(received)
