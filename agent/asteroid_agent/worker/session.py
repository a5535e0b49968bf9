"""A worker's life: take assignments, load programs, run stages, one generation after the other.

    starting -> loading -> ready -> running -> done
                   ^                   |
                   +-- a newer assignment (generation + 1) --+

Anything that goes wrong becomes the retained state ``failed`` with a sentence, and the process ends.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from asteroid_agent.backend import check_answer, open_backend
from asteroid_agent.worker.config import WorkerConfig
from asteroid_agent.worker.ports import TensorPort
from asteroid_agent.worker.runner import StageRunner, group_name
from asteroid_agent.worker.shell import WorkerShell
from asteroid_core.clock import Clock
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.opening import open_source
from asteroid_core.data.source import Source
from asteroid_core.errors import InputError, ProgramError, WireError
from asteroid_core.feeding import Feeder
from asteroid_core.ids import COORDINATOR
from asteroid_core.program import StageProgram
from asteroid_core.rounds import RoundPlan, passes
from asteroid_core.wire import topics
from asteroid_core.wire.messages import Assignment, Report, decode, encode
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)


class Superseded(Exception):
    """A newer assignment has come; whatever runs is given up."""


class Session:
    """Everything a worker does between its first connection and its end."""

    def __init__(
        self,
        config: WorkerConfig,
        link: TensorPort,
        shell: WorkerShell,
        clock: Clock,
        resident_mb: Callable[[], float | None],
    ) -> None:
        self._config, self._link, self._shell, self._clock = config, link, shell, clock
        self._tell = shell.tell
        self._resident_mb = resident_mb
        self._pending: Assignment | None = None
        self._generation = 0
        self._source: Source | None = None
        self._feed_errors: list[Exception] = []
        self._topic = topics.build("job_assignment", job=config.job, agent=config.agent)

    def run(self) -> None:
        """Serve assignments until the process is stopped."""
        self._tell("starting", 0, "")
        while True:
            assignment = self._next()
            try:
                self._serve(assignment)
            except Superseded:
                log.info("generation %d is given up for a newer one", assignment.plan.generation)

    def _next(self) -> Assignment:
        while self._pending is None:
            self._poll(1.0)
        assignment, self._pending = self._pending, None
        return assignment

    def _poll(self, timeout: float) -> None:
        """Take control messages; a newer assignment is kept as pending."""
        for topic, payload in self._shell.messages(timeout):
            if topic == self._topic and payload:
                self._offer(decode(Assignment, payload))

    def _offer(self, assignment: Assignment) -> None:
        if assignment.agent != self._config.agent or assignment.session != self._config.session:
            return
        if assignment.plan.generation > self._generation:
            self._generation = assignment.plan.generation
            self._pending = assignment

    def _control(self) -> None:
        self._poll(0.0)
        if self._pending is not None:
            raise Superseded
        if self._feed_errors:
            raise self._feed_errors[0]

    def _serve(self, assignment: Assignment) -> None:
        generation = assignment.plan.generation
        plan = assignment.plan
        self._link.set_generation(
            generation,
            [group_name(assignment.stage, g) for g, _ in plan.reduction_groups(self._config.agent)],
            {*plan.devices, COORDINATOR, assignment.data_owner},
        )
        self._tell("loading", generation, "")
        sent = self._fetch(
            {
                Kind.PROGRAM: (assignment.program_sha256, assignment.program_bytes),
                Kind.STATE: (assignment.state_sha256, assignment.state_bytes),
            }
        )
        program = StageProgram.from_bytes(sent[Kind.PROGRAM], assignment.program_sha256)
        state = load_safetensors(sent[Kind.STATE])
        check_answer(assignment.backend, program)
        backend = open_backend(assignment.backend, program, state, assignment.optimizer, self._config.cores)
        self._tell("ready", generation, "")

        def report(message: Report) -> None:
            topic = topics.build("agent_report", agent=self._config.agent, job=self._config.job)
            self._shell.publish(topic, encode(message))

        def snapshot(rounds: int) -> None:
            tag = Tag(Kind.STATE, generation, round=rounds)
            self._link.send(COORDINATOR, tag, Tensor.of_bytes(save_safetensors(backend.state())))

        runner = StageRunner(
            assignment,
            program,
            backend,
            self._link,
            control=self._control,
            report=report,
            snapshot=snapshot,
            clock=self._clock,
            resident_mb=self._resident_mb,
        )
        feeder = self._feeder(assignment) if assignment.data is not None else None
        try:
            runner.run()
        finally:
            if feeder is not None:
                feeder.halt()
        while self._link.backlog():
            self._poll(0.05)
            if self._pending is not None:
                raise Superseded
        report(
            Report(
                agent=self._config.agent,
                job=self._config.job,
                generation=generation,
                kind="finished",
                round=assignment.rounds,
            )
        )
        self._tell("done", generation, "")

    def _feeder(self, assignment: Assignment) -> Feeder:
        """Feed the job from here, where its data lies."""
        assert assignment.data is not None
        train = assignment.train
        if self._source is None:
            self._source = open_source(assignment.data, seed=train.seed, dtype=train.dtype)
        split = Split.of(len(self._source), assignment.data.validation, train.seed)
        if (len(split.training), len(split.validation)) != (assignment.samples, assignment.validation):
            raise InputError(
                f"The data {assignment.data.source} has changed: it has {len(self._source)} samples now.",
                "Put the old data back, or begin a new job.",
            )
        rounds = RoundPlan.of(train, assignment.samples, assignment.plan.micro_size)
        steps = passes(rounds, assignment.start_round, assignment.validation, train.validate_every)
        feed = FeedPlan(rounds, self._source, split)
        feeder = Feeder(self._link, feed, assignment.plan, steps, self._feed_errors.append)
        feeder.start()
        return feeder

    def _fetch(self, wanted: dict[Kind, tuple[str, int]]) -> dict[Kind, bytes]:
        """Wait for program and state from the coordinator; check that they are the ones the assignment names."""
        out: dict[Kind, bytes] = {}
        while len(out) < len(wanted):
            self._control()
            received = self._link.receive(0.2)
            if received is None:
                continue
            kind = received.tag.kind
            if received.src != COORDINATOR or kind not in wanted:
                raise WireError(
                    f"{received.src} sent a {kind.value}; only program and state from the coordinator are expected.",
                    "Check who may write below asteroid-data on the broker, then resume the job.",
                )
            data = bytes(received.tensor.data)
            self._link.release(received)
            sha256, size = wanted[kind]
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise ProgramError(
                    f"The {kind.value} that came is not the one that the assignment names (its SHA-256 differs).",
                    "Check who may write below asteroid-data on the broker, then resume the job.",
                )
            out[kind] = data
        return out
