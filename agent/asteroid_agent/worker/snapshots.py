"""Takes the snapshots of one generation, sends them to backups and coordinator, and serves those who ask for layers.

The next snapshot waits until the last one is durable (or given up), so a device never keeps more than two of a stage,
and all devices of a plan keep the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from asteroid_agent.backend.base import Backend
from asteroid_agent.worker.keeper import Keeper, Snapshot
from asteroid_agent.worker.ports import Received, TensorPort
from asteroid_core.errors import WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.wire.messages import Assignment, Report
from asteroid_core.wire.safe import pack, read_names, unpack
from asteroid_core.wire.tensor import ANSWER, CHECKPOINT, Kind, Tag, Tensor


class Snapshots:
    """What one generation's stage keeps and gives.

    Args:
        assignment: says when snapshots are due, and who the backups are.
        keeper: outlives the generation.
        link: to backups, coordinator, and whoever asks.
        report: tells the coordinator what is kept here.
    """

    def __init__(
        self, assignment: Assignment, keeper: Keeper, link: TensorPort, report: Callable[[Report], None]
    ) -> None:
        self._a, self._keeper, self._link, self._report = assignment, keeper, link, report
        self._stage = assignment.plan.stages[max(assignment.stage, 0)]
        self._last: int | None = None
        self._settled = -1
        self._backend: Backend | None = None

    def begin(self, backend: Backend) -> None:
        """The stage is loaded; keep the state of the start round if nobody else does.

        If a checkpoint of it was due, its parts may have been lost with the generation before: it is sent again.
        """
        self._backend = backend
        start = self._a.start_round
        if not self._a.start_saved and (self._a.snapshot_every or (self._saved(start) and self._leads)):
            self.take(start)

    def give_away(self, backend: Backend, generation: int, lo: int, hi: int) -> None:
        """Keep the working state of layers ``[lo, hi)`` at the start round, as an older generation had it."""
        a = self._a
        self._keeper.keep(Snapshot(a.agent, generation, a.start_round, lo, hi, pack(backend.state())))
        self._tell(a.start_round, lo, hi, generation)

    # When

    def due(self, rounds: int) -> bool:
        """Whether a snapshot follows ``rounds`` completed rounds."""
        if self._a.snapshot_every:
            return rounds % self._a.snapshot_every == 0 or self._saved(rounds)
        return self._saved(rounds) and self._leads

    def _saved(self, rounds: int) -> bool:
        return rounds % self._a.checkpoint_every == 0 or rounds == self._a.rounds

    @property
    def _leads(self) -> bool:
        return self._stage.leader == self._a.agent

    def room(self) -> bool:
        """Whether the last snapshot is durable, so that another one may be taken."""
        return self._last is None or self._last <= self._settled

    def settle(self, generation: int, rounds: int, abandoned: int) -> None:
        """Take the coordinator's word on what is durable, and on the last round that will not be."""
        mine = self._a.plan.generation
        if generation > mine:
            return
        self._keeper.settle(generation, rounds)
        if generation == mine:
            self._settled = max(self._settled, rounds)
        if self._last is not None and self._settled < self._last <= abandoned:
            self._keeper.forget(mine, self._last)
            self._settled = self._last

    # What

    def take(self, rounds: int) -> None:
        """Keep a snapshot, and send it to the backups and, if a checkpoint is due, to the coordinator."""
        self._save(rounds, self._take(rounds, copies=rounds < self._a.rounds))

    def _save(self, rounds: int, data: memoryview) -> None:
        if self._saved(rounds) and self._leads:
            tag = Tag(Kind.STATE, self._a.plan.generation, rounds, index=CHECKPOINT)
            self._link.send(COORDINATOR, tag, Tensor.of_bytes(data))

    def _take(self, rounds: int, copies: bool) -> memoryview:
        assert self._backend is not None
        data = pack(self._backend.state())
        stage = self._stage
        self._last = rounds
        self._keep(self._a.agent, rounds, stage.lo, stage.hi, data)
        if copies and self._a.snapshot_every:
            for backup in stage.backups:
                tag = Tag(Kind.COPY, self._a.plan.generation, rounds, stage.lo, stage.hi)
                self._link.send(backup, tag, Tensor.of_bytes(data))
        return data

    def _keep(self, source: str, rounds: int, lo: int, hi: int, data: memoryview) -> None:
        a = self._a
        self._keeper.keep(Snapshot(source, a.plan.generation, rounds, lo, hi, data))
        self._tell(rounds, lo, hi)

    def _tell(self, rounds: int, lo: int, hi: int, taken: int | None = None) -> None:
        a, generation = self._a, self._a.plan.generation
        self._report(
            Report(
                agent=a.agent, job=a.job, generation=generation, kind="kept", round=rounds, lo=lo, hi=hi, taken=taken
            )
        )

    # For others

    def serve(self, received: Received) -> bool:
        """Take a question or a copy of another device's snapshot; returns whether it was one.

        Raises:
            WireError: it is not what that device may send.
        """
        kind = received.tag.kind
        if kind is Kind.ASK:
            self._answer(received)
        elif kind is Kind.COPY:
            self._take_copy(received)
        else:
            return False
        self._link.release(received)
        return True

    def _answer(self, received: Received) -> None:
        rounds = received.tag.round
        found = self._keeper.find(rounds, read_names(received.tensor.data))
        tag = Tag(Kind.STATE, self._a.plan.generation, rounds, index=ANSWER)
        self._link.send(received.src, tag, Tensor.of_bytes(pack(found)))

    def _take_copy(self, received: Received) -> None:
        src, tag = received.src, received.tag
        plan = self._a.plan
        stage = plan.stages[plan.stage_of(src)] if src in plan.devices else None
        if stage is None or self._a.agent not in stage.backups or (tag.micro, tag.index) != (stage.lo, stage.hi):
            raise WireError(f"{src} sent a copy of its state, which this device is no backup for.")
        unpack(received.tensor.data)
        self._keep(src, tag.round, tag.micro, tag.index, received.tensor.data)
