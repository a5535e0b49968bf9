"""A worker's life: take assignments, load programs, run stages, one generation after the other.

    starting -> loading -> ready -> running -> done
                   ^                   |
                   +-- a newer assignment (generation + 1), perhaps after a halt --+

When the coordinator halts a generation, the worker says how far it is and keeps its working state: if the next
assignment is ``live``, it goes on from there.

Anything that goes wrong becomes the retained state ``failed`` with a sentence, and the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from asteroid_agent.backend import check_answer, open_backend
from asteroid_agent.backend.base import Backend
from asteroid_agent.worker.config import WorkerConfig
from asteroid_agent.worker.fetching import Fetcher
from asteroid_agent.worker.keeper import Keeper
from asteroid_agent.worker.ports import TensorPort
from asteroid_agent.worker.pulse import Pulse
from asteroid_agent.worker.runner import StageRunner, group_name
from asteroid_agent.worker.shell import WorkerShell
from asteroid_agent.worker.snapshots import Snapshots
from asteroid_core.clock import Clock
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.opening import open_source
from asteroid_core.data.source import Source
from asteroid_core.errors import InputError, WireError
from asteroid_core.feeding import Feeder
from asteroid_core.ids import COORDINATOR
from asteroid_core.program import StageProgram
from asteroid_core.rounds import RoundPlan, passes
from asteroid_core.wire import topics
from asteroid_core.wire.messages import (
    NO_STAGE,
    Assignment,
    CoordinatorStatus,
    JobState,
    Loading,
    Report,
    decode,
    encode,
)

log = logging.getLogger(__name__)

KEPT_AGAIN = 32
"""Reports of kept snapshots that are repeated to a coordinator which comes back."""


class Superseded(Exception):
    """A newer assignment has come; whatever runs is given up."""


class Halted(Exception):
    """The coordinator has halted this generation."""


@dataclass(frozen=True)
class _Stage:
    """A loaded stage."""

    program: StageProgram
    backend: Backend
    runner: StageRunner
    generation: int
    sha256: str


class Session:
    """Everything a worker does between its first connection and its end."""

    def __init__(
        self,
        config: WorkerConfig,
        link: TensorPort,
        shell: WorkerShell,
        clock: Clock,
        resident_mb: Callable[[], float | None],
        pulse: Pulse,
    ) -> None:
        self._config, self._link, self._shell, self._clock = config, link, shell, clock
        self._tell, self._pulse = shell.tell, pulse
        self._resident_mb = resident_mb
        self._pending: Assignment | None = None
        self._generation = 0
        self._source: Source | None = None
        self._feed_errors: list[Exception] = []
        self._keeper = Keeper()
        self._snapshots: Snapshots | None = None
        self._programs: dict[str, StageProgram] = {}
        self._stage: _Stage | None = None
        self._halt = False
        self._told: dict[tuple[str, int, int, int], Report] = {}
        self._coordinator = ""
        self._state_topic = topics.build("job_state", job=config.job)
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
            except Halted:
                self._tell_halted()

    def _next(self) -> Assignment:
        self._pulse.idle(self._clock.now())
        while self._pending is None:
            self._idle(0.2)
            if self._halt and self._pending is None:
                self._tell_halted()
        assignment, self._pending = self._pending, None
        return assignment

    def _idle(self, timeout: float) -> None:
        """Nothing to train: take control messages, and serve who asks for layers."""
        self._poll(timeout if self._snapshots is None else 0.0)
        if self._snapshots is not None and self._pending is None:
            received = self._link.receive(timeout)
            if received is not None and not self._snapshots.serve(received):
                self._link.release(received)  # a straggler of a round that is behind us

    def _poll(self, timeout: float) -> None:
        """Take control messages; a newer assignment is kept as pending."""
        for topic, payload in self._shell.messages(timeout):
            if topic == self._topic and payload:
                self._offer(decode(Assignment, payload))
            elif topic == self._state_topic and payload:
                state = decode(JobState, payload)
                self._halt = state.phase == "halting" and state.generation == self._generation
                if self._snapshots is not None:
                    self._snapshots.settle(state.durable_generation, state.durable, state.abandoned)
            elif topic == topics.build("coordinator_status") and payload:
                self._greet(decode(CoordinatorStatus, payload))

    def _greet(self, status: CoordinatorStatus) -> None:
        """Tell a coordinator on a new connection again what this generation has told it: some of it may be lost."""
        if status.state != "online" or status.connection == self._coordinator:
            return
        first, self._coordinator = not self._coordinator, status.connection
        for report in () if first else tuple(self._told.values()):
            self._publish(report)

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
        if self._halt:
            raise Halted
        if self._feed_errors:
            raise self._feed_errors[0]

    def _tell_halted(self) -> None:
        """Say how far the working state is."""
        self._halt = False
        if self._stage is None:
            return  # nothing to go on with; the coordinator counts us out when we do not answer
        runner = self._stage.runner
        message = Report(
            agent=self._config.agent,
            job=self._config.job,
            generation=self._generation,
            kind="halted",
            round=runner.rounds,
            voted=runner.voted,
            scale=runner.scale,
        )
        self._report(message)

    def _serve(self, assignment: Assignment) -> None:
        generation = assignment.plan.generation
        plan = assignment.plan
        self._told.clear()
        serves = assignment.stage == NO_STAGE
        groups = () if serves else plan.reduction_groups(self._config.agent)
        self._pulse.enter(generation, self._clock.now())
        self._link.set_generation(
            generation,
            [group_name(assignment.stage, g) for g, _ in groups],
            {*plan.devices, COORDINATOR, assignment.data_owner, *(s.device for s in assignment.sources)},
        )
        self._snapshots = snapshots = Snapshots(assignment, self._keeper, self._link, self._report)
        self._tell("loading", generation, "")
        self._keeper.only({assignment.base, assignment.start_round})
        if assignment.moved:
            self._give_away(assignment, snapshots)
        if serves:
            self._stage = None
            return  # the others ask, until the supervisor ends this process
        fetcher = Fetcher(assignment, self._link, self._keeper, snapshots, self._control)
        if assignment.live:
            loading = Loading()
            program, backend = self._catch_up(assignment)
        else:
            program, backend, loading = self._load(assignment, fetcher)
        self._tell("ready", generation, "", loading)
        snapshots.begin(backend)  # the others need not wait for it: no weight changes before the first step
        runner = StageRunner(
            assignment,
            program,
            backend,
            self._link,
            control=self._control,
            report=self._report,
            keeps=snapshots,
            clock=self._clock,
            resident_mb=self._resident_mb,
            pulse=self._pulse,
            early=fetcher.early,
        )
        self._stage = _Stage(program, backend, runner, generation, assignment.program_sha256)
        feeder = self._feeder(assignment) if assignment.data is not None else None
        try:
            runner.run()
        finally:
            if feeder is not None:
                feeder.halt()
        self._pulse.idle(self._clock.now())
        while self._link.backlog():
            self._idle(0.05)
            if self._pending is not None:
                raise Superseded
        self._report(
            Report(
                agent=self._config.agent,
                job=self._config.job,
                generation=generation,
                kind="finished",
                round=assignment.rounds,
            )
        )
        self._tell("done", generation, "")

    def _catch_up(self, assignment: Assignment) -> tuple[StageProgram, Backend]:
        """Go on with the working state.

        Raises:
            WireError: there is none, or it cannot be brought to the start round.
        """
        stage = self._stage
        if stage is None or assignment.program_sha256 not in self._programs:
            raise WireError("This device is to go on with a stage that it does not hold.", "Resume the job.")
        stage.runner.catch_up(assignment.start_round, assignment.scale)
        return stage.program, stage.backend

    def _give_away(self, assignment: Assignment, snapshots: Snapshots) -> None:
        """Step as far as the others, and keep the state there for who takes layers over.

        Raises:
            WireError: there is no working state, or it cannot be brought to the start round.
        """
        stage = self._stage
        if stage is None:
            raise WireError("This device is to hand over a stage that it does not hold.", "Resume the job.")
        stage.runner.catch_up(assignment.start_round, assignment.scale)
        snapshots.give_away(stage.backend, stage.generation, stage.program.lo, stage.program.hi)

    def _load(self, assignment: Assignment, fetcher: Fetcher) -> tuple[StageProgram, Backend, Loading]:
        """Fetch program and state, and load them; a stage that stays where it is is not loaded again."""
        stage = self._stage
        if assignment.moved and stage is not None and stage.sha256 == assignment.program_sha256:
            return stage.program, stage.backend, Loading()
        self._stage = None
        program = fetcher.program(self._programs)
        begin = self._clock.now()
        state = fetcher.state(program)
        fetched = self._clock.now()
        if assignment.program_sha256 not in self._programs:
            check_answer(assignment.backend, program)
        self._programs = {assignment.program_sha256: program}
        backend = open_backend(assignment.backend, program, state, assignment.optimizer, self._config.cores)
        loading = Loading(fetched_bytes=fetcher.nbytes, fetch_s=fetched - begin, load_s=self._clock.now() - fetched)
        return program, backend, loading

    def _report(self, message: Report) -> None:
        if message.kind == "kept":
            self._told["kept", message.round, message.lo, message.hi] = message
            # As many as can matter: two snapshots of the own stage, and of those that it is a backup of.
            for old in [key for key in self._told if key[0] == "kept"][:-KEPT_AGAIN]:
                del self._told[old]
        elif message.kind in ("round", "finished"):
            self._told[message.kind, 0, 0, 0] = message
        self._publish(message)

    def _publish(self, message: Report) -> None:
        topic = topics.build("agent_report", agent=self._config.agent, job=self._config.job)
        self._shell.publish(topic, encode(message))

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
