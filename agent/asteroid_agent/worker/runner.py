"""Runs one stage: drives the walker with a backend and a link, pass after pass.

One thread, the compute thread, owns all of this. Everything that waits has one place, ``_await``, so a new assignment
or a stop is noticed there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from asteroid_agent.backend.base import Backend, SampleKeys, Scores
from asteroid_agent.worker.mailbox import Expectations, Expected, Mailbox, PassKey
from asteroid_agent.worker.pieces import join, rows
from asteroid_agent.worker.ports import Keeps, Received, TensorPort
from asteroid_agent.worker.pulse import Pulse
from asteroid_core.clock import Clock
from asteroid_core.errors import WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.optim import clip_scale, learning_rate
from asteroid_core.patience import Patience
from asteroid_core.program import StageProgram
from asteroid_core.reduce import add_in_order, slices
from asteroid_core.rounds import RoundPlan, passes, validation_micros
from asteroid_core.routing import clip, incoming, outgoing
from asteroid_core.schedule import WAITS, Instruction, Op, forward_schedule, schedule
from asteroid_core.walker import ScheduleWalker
from asteroid_core.wire.messages import Assignment, Report
from asteroid_core.wire.tensor import Kind, Tag, Tensor

ALL = "all"
"""Stage name of a multicast to every worker of the job."""


@dataclass
class _Clockwork:
    """Time of one pass, by what it was spent on."""

    begin: float
    busy: float = 0.0
    wait: float = 0.0


class StageRunner:
    """One stage of one generation on one device.

    Args:
        assignment: what to do.
        program: the stage's program (its ports decide what is sent).
        backend: loaded with program and state.
        link: tensors in and out.
        control: called between instructions and while waiting; raises to interrupt.
        report: tells the coordinator.
        keeps: takes snapshots when they are due, and serves devices that ask for layers.
        clock: time.
        resident_mb: memory of the process, for the report.
        pulse: told what is being done or waited for.
        early: tensors of this generation that came while the stage was being loaded.
    """

    def __init__(
        self,
        assignment: Assignment,
        program: StageProgram,
        backend: Backend,
        link: TensorPort,
        *,
        control: Callable[[], None],
        report: Callable[[Report], None],
        keeps: Keeps,
        clock: Clock,
        resident_mb: Callable[[], float | None],
        pulse: Pulse,
        early: Sequence[Received] = (),
    ) -> None:
        self._resident_mb = resident_mb
        self._a, self._backend, self._link = assignment, backend, link
        self._control, self._report, self._keeps, self._clock = control, report, keeps, clock
        self._pulse = pulse
        self._plan = assignment.plan
        self._patience = Patience(predicted_s=self._plan.predicted_s or 0.0)
        self._me = assignment.agent
        self._stage = self._plan.stages[assignment.stage]
        self._program = program
        self._expect = Expectations(self._plan, self._me, program.inputs, program.outputs, assignment.data_owner)
        self._mail: Mailbox[Received] = Mailbox()
        for received in early:
            self._mail.put(received.src, received.tag, received)
        self._rounds = RoundPlan.of(assignment.train, assignment.samples, self._plan.micro_size)
        self._groups = dict(self._plan.reduction_groups(self._me))
        self._key = PassKey(0, assignment.start_round)
        self._rows: Sequence[int] = ()
        self._vectors: dict[int, npt.NDArray[np.floating]] = {}
        self._sums: dict[int, npt.NDArray[np.floating]] = {}
        self._outputs: dict[int, list[Tensor]] = {}
        self._gradients: dict[int, list[Tensor]] = {}
        self._grad_outputs: dict[int, list[Tensor]] = {}
        self._inputs: dict[int, list[Tensor]] = {}
        self._targets: dict[int, tuple[Tensor, float]] = {}
        self._scores = Scores()
        self._norms: list[float] = []
        self._walker = ScheduleWalker(())
        self._time = _Clockwork(0.0)
        self._open = False
        self.rounds = assignment.start_round
        """stepped so far"""
        self.voted = False
        """whether the next round's reduced gradients are here"""
        self.scale: float | None = None
        """of the last step"""

    def catch_up(self, start: int, scale: float | None) -> None:
        """Bring the working state to ``start`` rounds after an interruption.

        Either the open round is taken back (no weight has changed in it), or the step that others have taken is taken
        here too, with the gradients that the group has reduced already.

        Raises:
            WireError: neither leads there.
        """
        if start == self.rounds:
            if self._open:
                self._backend.rollback()
        elif start == self.rounds + 1 and self.voted and scale is not None:
            self._backend.step(learning_rate(self._a.optimizer, self.rounds, self._a.rounds), scale)
            self.rounds = start
        else:
            raise WireError(f"This device has stepped {self.rounds} rounds and cannot go on with round {start}.")
        self._open = self.voted = False

    def run(self) -> None:
        """Run every pass from the start round to the end of the job."""
        a = self._a
        for step in passes(self._rounds, a.start_round, a.validation, a.train.validate_every):
            self._key = PassKey(step.phase, step.round)
            if step.phase == 0:
                self._rows = [self._plan.micro_size] * self._plan.micro_count
                self._backend.begin_round()
                self._open = True
                self._pass(schedule(self._plan, self._me))
                self._tell("round")
                done = self.rounds
                if self._keeps.due(done):
                    self._await_room()
                    self._keeps.take(done)
            else:
                self._rows = validation_micros(a.validation, self._plan.micro_size)
                self._pass(forward_schedule(self._plan, self._me, self._rows))
                self._tell("validation")

    def _pass(self, instructions: Sequence[Instruction]) -> None:
        self._walker = ScheduleWalker(instructions)
        self._scores = Scores()
        self._time = _Clockwork(self._clock.now())
        while not self._walker.finished:
            for item in self._walker.ready():
                self._control()
                self._perform(item)
            waiting = self._walker.waiting_for
            if waiting is not None and waiting.op in WAITS:
                self._await(waiting)
        self._patience = self._patience.after(self._clock.now() - self._time.begin)

    def _perform(self, item: Instruction) -> None:
        begin = self._clock.now()
        number = item.number if item.number is not None else 0
        match item.op:
            case Op.FORWARD:
                self._forward(number)
            case Op.SEND_ACT:
                self._send_rows(Kind.ACT, number, self._outputs.pop(number))
            case Op.BACKWARD:
                self._backward(number)
            case Op.SEND_GRAD:
                self._send_rows(Kind.GRAD, number, self._gradients.pop(number))
            case Op.FREE:
                self._backend.free(number)
            case Op.SEND_SHARD:
                self._send_shards(number)
            case Op.REDUCE:
                self._reduce(number)
            case Op.SEND_SUM:
                self._send_sum(number)
            case Op.VOTE:
                self._vote()
            case Op.STEP:
                self._step()
            case _:
                raise ValueError(f"{item} is not something to do")
        if item.op in (Op.FORWARD, Op.BACKWARD, Op.REDUCE, Op.STEP):
            self._walker.done(item)
        self._pulse.done()
        self._time.busy += self._clock.now() - begin

    # Waiting

    def _await(self, item: Instruction) -> None:
        of_micro = item.op in (Op.RECV_ACT, Op.RECV_TARGET, Op.RECV_GRAD)
        samples = self._rows[item.number] if of_micro and item.number is not None else 0
        expected = self._expect.parts(item.op, item.number, samples)
        key = (self._key, item.op, item.number or 0)
        begin = self._clock.now()
        # What is waited for now gives its credit back as it lands: an instruction may need more tensors of one sender
        # than that sender has credit for. What comes early gives it back when its turn comes, which holds the sender.
        for part in self._mail.held(key):
            self._link.release(part)
        while missing := self._mail.missing(self._key, item.op, item.number, expected):
            self._pulse.wait(missing, begin, self._patience.seconds)
            received = self._take()
            if received is not None and self._mail.put(received.src, received.tag, received) == key:
                self._link.release(received)
        self._pulse.done()
        self._time.wait += self._clock.now() - begin
        parts = self._mail.take(self._key, item.op, item.number, expected)
        self._accept(item, parts)
        self._walker.arrived(item.op, item.number)

    def _take(self) -> Received | None:
        """The next tensor that an instruction waits for, if one comes soon."""
        self._control()
        received = self._link.receive(0.2)
        return received if received is not None and not self._keeps.serve(received) else None

    def _await_room(self) -> None:
        """Wait until the last snapshot is durable; training tensors that come meanwhile are kept."""
        begin = self._clock.now()
        while not self._keeps.room():
            self._pulse.wait((COORDINATOR,), begin, self._patience.seconds)
            received = self._take()
            if received is not None:
                self._mail.put(received.src, received.tag, received)
        self._pulse.work()

    def _accept(self, item: Instruction, parts: list[tuple[Expected, Received]]) -> None:
        number = item.number if item.number is not None else 0
        for want, part in parts:
            _check(want, part, item)
        if item.op is Op.RECV_ACT:
            self._inputs[number] = _join(parts)
        elif item.op is Op.RECV_GRAD:
            self._grad_outputs[number] = _join(parts)
        elif item.op is Op.RECV_TARGET:
            self._targets[number] = (parts[0][1].tensor, float(_floats(parts[1][1].tensor)[0]))
        elif item.op is Op.RECV_SHARD:
            self._add_shards(number, parts)
        elif item.op is Op.RECV_SUM:
            self._gather(number, parts)
        elif item.op is Op.RECV_VOTES:
            norms = {want.source: float(_floats(part.tensor)[0]) for want, part in parts} | {self._me: self._norms[0]}
            self._norms = [norms[stage.leader] for stage in self._plan.stages]

    # Computing

    def _samples(self, micro: int) -> SampleKeys:
        lo, hi = clip(self._stage, self._rows[micro])[self._me]
        epochs, indices = self._rounds.micro(self._key.round, micro)
        return SampleKeys(self._a.train.seed, epochs[lo:hi], indices[lo:hi])

    def _forward(self, micro: int) -> None:
        train = self._key.phase == 0
        samples = self._samples(micro) if train else None
        inputs = self._inputs.pop(micro)
        if self._program.loss is None:
            self._outputs[micro] = self._backend.forward(micro, inputs, train=train, samples=samples)
        else:
            target, normaliser = self._targets.pop(micro)
            self._scores += self._backend.forward_loss(micro, inputs, target, normaliser, train=train, samples=samples)

    def _backward(self, micro: int) -> None:
        self._gradients[micro] = self._backend.backward(micro, self._grad_outputs.pop(micro, None))

    def _send_rows(self, kind: Kind, micro: int, tensors: list[Tensor]) -> None:
        lo, _ = clip(self._stage, self._rows[micro])[self._me]
        forward = kind is Kind.ACT
        paths = (outgoing if forward else incoming)(self._plan, self._me, self._rows[micro])
        ports = self._program.outputs if forward else self._program.inputs
        names = [i for i, p in enumerate(ports) if forward or p.grad]
        for index, tensor in zip(names, tensors, strict=True):
            for path in paths:
                self._link.send(
                    path.target if forward else path.source,
                    self._tag(kind, micro, index),
                    rows(tensor, path.lo - lo, path.hi - lo),
                )

    # End of the round

    def _send_shards(self, group: int) -> None:
        members = self._groups[group]
        vector = self._backend.gradient(group if group == 0 else self._plan.ties[group - 1].name)
        if group == 0:
            share = next(s.samples for s in self._stage.shares if s.device == self._me) / self._plan.micro_size
            vector = np.concatenate([vector, self._backend.statistics() * vector.dtype.type(share)])
        self._vectors[group] = vector
        for member, (lo, hi) in zip(members, slices(len(vector), len(members)), strict=True):
            if member != self._me:
                self._link.send(member, self._tag(Kind.REDUCE, group), Tensor.of_numpy(vector[lo:hi]))

    def _add_shards(self, group: int, parts: list[tuple[Expected, Received]]) -> None:
        members, vector = self._groups[group], self._vectors[group]
        lo, hi = slices(len(vector), len(members))[members.index(self._me)]
        have = {want.source: _floats(part.tensor) for want, part in parts} | {self._me: vector[lo:hi]}
        for source, piece in have.items():
            if piece.shape != (hi - lo,) or piece.dtype != vector.dtype:
                raise WireError(
                    f"{source} sent a gradient slice of {piece.shape} {piece.dtype}, expected {(hi - lo,)}."
                )
        self._sums[group] = add_in_order([have[m] for m in members])

    def _reduce(self, group: int) -> None:
        """The addition is done as the slices are taken; the instruction marks its place in time."""
        if group not in self._sums:
            raise ValueError(f"reduction {group} has no sum")

    def _send_sum(self, group: int) -> None:
        others = [m for m in self._groups[group] if m != self._me]
        self._link.multicast(
            group_name(self._a.stage, group), others, self._tag(Kind.GATHER, group), Tensor.of_numpy(self._sums[group])
        )

    def _gather(self, group: int, parts: list[tuple[Expected, Received]]) -> None:
        members, vector = self._groups[group], self._vectors.pop(group)
        have = {want.source: _floats(part.tensor) for want, part in parts} | {self._me: self._sums.pop(group)}
        pieces = [have[m] for m in members]
        for member, piece, (lo, hi) in zip(members, pieces, slices(len(vector), len(members)), strict=True):
            if piece.shape != (hi - lo,) or piece.dtype != vector.dtype:
                raise WireError(f"{member} sent a gradient sum of {piece.shape} {piece.dtype}, expected {(hi - lo,)}.")
        # Who sent a sum has had my slice of it: nobody reads the vector any more, and its memory is there already.
        total = np.concatenate(pieces, out=vector)
        if group == 0:
            count = len(total) - self._backend.statistics().size
            self._backend.set_statistics(total[count:])
            self._backend.set_gradient(0, total[:count])
        else:
            self._backend.set_gradient(self._plan.ties[group - 1].name, total)

    def _vote(self) -> None:
        counted = [t.name for t in self._plan.ties if t.stages[0] == self._a.stage]
        clips = self._a.optimizer.clip_norm is not None and self._stage.leader == self._me
        norm = self._backend.squared_norm(counted) if clips else 0.0
        self._norms = [norm]
        others = [d for d in self._plan.devices if d != self._me]
        self.voted = True
        if others:
            self._link.multicast(ALL, others, self._tag(Kind.VOTE, 0), Tensor.of_numpy(np.array([norm])))

    def _step(self) -> None:
        rate = learning_rate(self._a.optimizer, self._key.round, self._a.rounds)
        self.scale = clip_scale(self._a.optimizer, self._norms)
        self._backend.step(rate, self.scale)
        self.rounds = self._key.round + 1
        self._open = self.voted = False

    def _tag(self, kind: Kind, number: int, index: int = 0) -> Tag:
        return Tag(
            kind=kind,
            generation=self._plan.generation,
            round=self._key.round,
            micro=number,
            index=index,
            phase=self._key.phase,
        )

    def _tell(self, kind: str) -> None:
        last = self._program.loss is not None
        self._report(
            Report.model_validate(
                {
                    "agent": self._me,
                    "job": self._a.job,
                    "generation": self._plan.generation,
                    "kind": kind,
                    "round": self._key.round,
                    "loss": self._scores.loss if last else None,
                    "correct": self._scores.correct if last else None,
                    "counted": self._scores.counted if last else None,
                    "seconds": self._clock.now() - self._time.begin,
                    "busy_s": self._time.busy,
                    "wait_s": self._time.wait,
                    "peak_alive": self._walker.peak,
                    "memory_mb": self._resident_mb(),
                }
            )
        )


def group_name(stage: int, group: int) -> str:
    """Level of the multicast topic of a reduction group."""
    return f"stage{stage}" if group == 0 else f"tie{group}"


def _floats(tensor: Tensor) -> npt.NDArray[np.floating]:
    if tensor.dtype not in ("float32", "float64"):
        raise WireError(f"A reduction of type {tensor.dtype} came, expected float32 or float64.")
    return cast("npt.NDArray[np.floating]", tensor.numpy())


def _check(want: Expected, part: Received, item: Instruction) -> None:
    tensor = part.tensor
    if want.port is not None and (tensor.dtype != want.port.dtype or tensor.shape != (want.rows, *want.port.shape)):
        raise WireError(
            f"{want.source} sent {tensor.dtype}{list(tensor.shape)} for {item} {want.port.name}, "
            f"expected {want.port.dtype}{[want.rows, *want.port.shape]}."
        )
    if want.port is None and want.rows is not None and (not tensor.shape or tensor.shape[0] != want.rows):
        raise WireError(f"{want.source} sent {list(tensor.shape)} for {item}, expected {want.rows} rows.")


def _join(parts: list[tuple[Expected, Received]]) -> list[Tensor]:
    """Put the rows of each tensor together, in row order."""
    by_index: dict[int, list[Tensor]] = {}
    for want, part in parts:
        by_index.setdefault(want.index, []).append(part.tensor)
    return [join(pieces) for _, pieces in sorted(by_index.items())]
