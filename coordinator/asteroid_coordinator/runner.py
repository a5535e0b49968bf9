"""One job's thread: takes events from its inbox, asks ``job.decide`` what to do, does it.

The only place where a job touches the model, the data, the store, the broker. It owns the job's state; everybody else
only puts events into ``inbox``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asteroid_coordinator import checkpoint
from asteroid_coordinator.cluster.registry import Registry
from asteroid_coordinator.inspecting import Inspector
from asteroid_coordinator.job.decide import decide
from asteroid_coordinator.job.state import (
    ENDED,
    Broken,
    Checkpointed,
    CheckpointFailed,
    Effect,
    Export,
    Feed,
    Halt,
    Halted,
    Import,
    Imported,
    Job,
    JobEvent,
    Kept,
    Late,
    MakePlan,
    Mode,
    Planned,
    Prepare,
    Profile,
    Profiled,
    Release,
    RoundDone,
    Say,
    StopAsked,
    StopFeed,
    Submitted,
    WorkerFinished,
)
from asteroid_coordinator.narrator import Narrator
from asteroid_coordinator.planning import plan_job
from asteroid_coordinator.profiling import Profiler
from asteroid_coordinator.scoreboard import Scoreboard
from asteroid_coordinator.stock import Question, StatePart, Stock, asked
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.feeding import Feeder
from asteroid_core.held import Held
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.tensors import TensorLink
from asteroid_core.rounds import passes
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import (
    Assignment,
    Command,
    DeviceMemory,
    JobPhase,
    JobSpecMessage,
    PlanSummary,
    Report,
)
from asteroid_core.wire.safe import Array, unpack
from asteroid_core.wire.tensor import ANSWER, Kind

if TYPE_CHECKING:
    from asteroid_coordinator.importing import Imports
    from asteroid_coordinator.store import Store

log = logging.getLogger(__name__)

READY_S = 120.0
"""Time that workers have to load their stage and pass the known-answer test."""

HALT_S = 10.0
"""Time that workers have to say how far they are, beside a few predicted rounds."""


@dataclass(frozen=True)
class Shell:
    """What a job needs of the service around it."""

    session: str
    store: Store
    directory: Path
    registry: Registry
    publish: Callable[[str, bytes, bool], None]
    command: Callable[[str, Command], None]
    open_link: Callable[[str], TensorLink]
    profiler: Callable[[], Profiler]
    inspector: Callable[[], Inspector]


class JobRunner(threading.Thread):
    """Runs one job from submission to its end."""

    def __init__(self, spec: JobSpec, mode: Mode, shell: Shell, generation: int = 0, resume: bool = False) -> None:
        super().__init__(name=f"job-{spec.name}", daemon=True)
        self.spec, self._shell = spec, shell
        self.inbox: queue.Queue[JobEvent | StatePart | Question | Report] = queue.Queue()
        self.job = Job(name=spec.name)
        self.narrator = Narrator(spec.name, shell.store, shell.publish)
        self._checkpoints = checkpoint.Checkpoints(shell.directory / "jobs" / spec.name, keep=spec.checkpoint.keep)
        self._imports: Imports | None = None
        self._link: TensorLink | None = None
        self._receiver: threading.Thread | None = None
        self._feeder: Feeder | None = None
        self._stock = Stock()
        self._snapshot_every = 0
        self._parts: dict[int, dict[int, memoryview]] = {}
        self._score: Scoreboard | None = None
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._cancelled = threading.Event()
        latest = self._checkpoints.latest() if resume else None
        saved = latest.rounds if latest is not None else 0
        self.inbox.put(Submitted(mode, saved, generation, heavy=spec.replication.recovery == "heavy"))

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self._ended.is_set()

    def stop(self) -> None:
        """Ask it to stop; a measurement that is under way is given up."""
        self._cancelled.set()
        self.inbox.put(StopAsked())

    def wait(self, timeout: float) -> bool:
        """Wait for the end."""
        return self._ended.wait(timeout)

    def run(self) -> None:
        """Take events until the job has ended."""
        self.narrator.keep("job_spec", JobSpecMessage(job=self.spec.name, spec=self.spec))
        try:
            while self.job.phase not in ENDED:
                self._take(self.inbox.get())
        finally:
            self._close()
            self._ended.set()

    def _take(self, item: JobEvent | StatePart | Question | Report) -> None:
        self.narrator.heard(item)
        if isinstance(item, StatePart | Question):
            self._guard(partial(self._exchange, item))
            return
        if isinstance(item, Report):
            for event in self._translate(item):
                self._step(event)
            return
        self._step(item)

    def _step(self, event: JobEvent) -> None:
        before = self.job.phase
        self.job, effects = decide(self.job, event)
        for effect in effects:
            if not self._guard(partial(self._perform, effect)):
                break
        if before not in ENDED and self.job.phase in ENDED:
            self._drop_assignments()
        self.narrator.passed(self.job)

    def _guard(self, do: Callable[[], None]) -> bool:
        """Do something; what goes wrong ends the job with its sentence, the service and other jobs go on."""
        try:
            do()
        except AsteroidError as error:
            self._fail(error)
        except Exception as error:
            log.exception("job %s", self.spec.name)
            self.inbox.put(Broken(f"{type(error).__name__}: {error}", "This is a bug; please report the log."))
        else:
            return True
        return False

    def _fail(self, error: AsteroidError) -> None:
        self.inbox.put(Broken(error.what, error.remedy, error.exit_code))

    def _translate(self, report: Report) -> list[JobEvent]:
        if self._score is not None and report.kind in ("round", "validation"):
            metrics = self._score.add(report)
            if metrics is not None:
                self.narrator.metrics(metrics)
                if metrics.kind == "validation":
                    accuracy = "" if metrics.accuracy is None else f", accuracy {metrics.accuracy:.2%}"
                    self.narrator.event(
                        "validation",
                        f"round {metrics.round + 1}: loss {metrics.loss or 0.0:.4f}{accuracy}",
                        {"round": metrics.round, "loss": metrics.loss, "accuracy": metrics.accuracy},
                    )
        if report.kind == "round":
            return [RoundDone(report.agent, report.generation, report.round)]
        if report.kind == "finished":
            return [WorkerFinished(report.agent, report.generation)]
        if report.kind == "halted":
            return [Halted(report.agent, report.generation, report.round, report.voted, report.scale)]
        if report.kind == "kept" and 0 <= report.lo < report.hi:
            where = {"rounds": report.round, "lo": report.lo, "hi": report.hi}
            return [Kept(Held(device=report.agent, generation=report.generation, **where))]
        return []

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Say(kind=kind, text=text, data=data):
                self.narrator.event(kind, text, data)
            case Import():
                self._import()
            case Profile():
                self._profile()
            case MakePlan():
                self._plan(effect)
            case Prepare():
                self._prepare(effect)
            case Halt(plan=plan):
                self._deadline(HALT_S + 5 * (plan.predicted_s or 0.0), "halting")
            case Feed(start_round=start_round):
                self._feed(start_round)
            case StopFeed():
                if self._feeder is not None:
                    self._feeder.halt()
            case Release(devices=devices):
                self._release(devices)
            case Export():
                self._export()

    def _import(self) -> None:
        from asteroid_coordinator.importing import import_job  # torch: only when a job needs it

        self.narrator.tell_state(self.job)
        data = None
        if self.spec.data.owner != COORDINATOR:
            data = self._shell.inspector().look(self.spec, self._cancelled.is_set)
            if data is None:
                return  # given up; the inbox holds why
            self.narrator.event("data", f"{data.agent} has {data.text}")
        self._imports = import_job(self.spec, data)
        for note in self._imports.notes:
            self.narrator.event("note", note)
        self.inbox.put(Imported(self._imports.rounds))

    def _profile(self) -> None:
        imports = self._need()
        measured = self._shell.profiler().measure(
            self.spec, imports, lambda kind, text: self.narrator.event(kind, text), self._cancelled.is_set
        )
        if self._cancelled.is_set():
            return  # the inbox holds why
        imports.profiles.update(measured.profiles)
        imports.hub_bytes_per_s = measured.links.hub_bytes_per_s
        imports.coordinator = measured.links.coordinator
        self.inbox.put(Profiled(tuple(sorted(measured.profiles)), tuple(measured.failed.items())))

    def _plan(self, effect: MakePlan) -> None:
        imports = self._need()
        present = {d.name: d for d in self._shell.registry.present() if d.name not in effect.without}
        usable = {name: p for name, p in imports.profiles.items() if name in present}
        if not usable:
            why = "".join(f" {name}: {reason.rstrip('.')}." for name, reason in self.job.excluded)
            raise InputError(
                f"No device is left to train on.{why}",
                f"Start an agent, then: asteroid resume {self.spec.name}",
            )
        devices = {n: d for n, d in present.items() if n in usable}
        made = plan_job(self.spec, imports, usable, devices, effect.generation, effect.way, effect.old)
        outcome = made.outcome
        if made.note:
            self.narrator.event("note", made.note)
        self._snapshot_every = made.snapshot_every
        summary = PlanSummary(
            job=self.spec.name,
            plan=outcome.plan,
            layers=len(imports.model.layers),
            memory=tuple(
                DeviceMemory(device=d, need_mb=round(need, 1), budget_mb=budget)
                for d, (need, budget) in outcome.memory.items()
            ),
            costs=outcome.costs,
            text=outcome.plan.describe(),
            snapshot_every=made.snapshot_every,
        )
        self.narrator.keep("job_plan", summary)
        self.inbox.put(Planned(outcome.plan, made.way))

    def _prepare(self, effect: Prepare) -> None:
        imports = self._need()
        plan, start_round = effect.plan, effect.start_round
        if self._link is None:
            self._open_link()
        assert self._link is not None
        self._link.set_generation(plan.generation)
        self._parts.clear()
        self._drop_assignments(keep=plan.devices)
        self._score = Scoreboard(self.spec.name, self.job.rounds, plan)
        programs = {s: imports.model.stage(s.lo, s.hi).to_bytes() for s in plan.stages}
        self._stock = Stock(
            generation=plan.generation,
            start_round=start_round,
            programs={device: programs[stage] for stage in plan.stages for device in stage.devices},
            load=lambda: self._load_state(start_round),
        )
        if self.job.heavy and not effect.saved:
            self._stock.collect(self._link, asked(self.job.held, start_round, plan.layers, imports.model.state_names))
        for device in plan.devices:
            self._assign(effect, device)
        self._deadline(READY_S, "preparing")

    def _deadline(self, seconds: float, phase: JobPhase) -> None:
        late = Late(self.job.generation, phase)
        timer = threading.Timer(seconds, lambda: self.inbox.put(late))
        timer.daemon = True
        timer.start()

    def _assign(self, effect: Prepare, device: str) -> None:
        imports = self._need()
        plan = effect.plan
        assignment = Assignment(
            job=self.spec.name,
            agent=device,
            plan=plan,
            stage=plan.stage_of(device),
            train=self.spec.train,
            optimizer=self.spec.optimizer,
            program_sha256=self._stock.sha256(device),
            program_bytes=len(self._stock.programs[device]),
            sources=dict(effect.sources).get(device, ()),
            live=effect.live,
            scale=effect.scale,
            base=effect.base,
            start_saved=effect.saved,
            snapshot_every=self._snapshot_every,
            start_round=effect.start_round,
            rounds=self.job.rounds,
            samples=imports.samples,
            validation=imports.validation,
            checkpoint_every=self._checkpoint_every(),
            data_owner=self.spec.data.owner,
            data=self.spec.data if self.spec.data.owner == device else None,
            session=self._shell.session,
        )
        self.narrator.keep("job_assignment", assignment, agent=device)
        command = Command(
            id=f"{self.spec.name}-{plan.generation}-{self._shell.session[:8]}",
            verb="prepare",
            job=self.spec.name,
            generation=plan.generation,
            session=self._shell.session,
        )
        self._shell.command(device, command)

    def _checkpoint_every(self) -> int:
        every = self.spec.checkpoint.every
        return max(1, self.job.rounds // 10) if every == "auto" else every

    def _feed(self, start_round: int) -> None:
        if self.spec.data.owner != COORDINATOR:
            return  # the worker there feeds, once it is ready
        assert self._link is not None
        assert self.job.plan is not None
        imports = self._need()
        plan = self.job.plan
        steps = passes(imports.round_plan(plan), start_round, imports.validation, self.spec.train.validate_every)

        def failed(error: Exception) -> None:
            if isinstance(error, AsteroidError):
                self._fail(error)
            else:
                what = f"The data cannot be read: {type(error).__name__}: {error}."
                self.inbox.put(Broken(what, "Mend the data set, then resume the job.", 2))

        self._feeder = Feeder(self._link, imports.feed_plan(plan), plan, steps, failed)
        self._feeder.start()

    def _release(self, devices: tuple[str, ...]) -> None:
        for device in devices:
            command = Command(
                id=f"{self.spec.name}-stop-{self.job.generation}-{self._shell.session[:8]}",
                verb="stop",
                job=self.spec.name,
                generation=self.job.generation,
                session=self._shell.session,
            )
            self._shell.command(device, command)

    def _export(self) -> None:
        latest = self._checkpoints.latest()
        if latest is None:
            raise AsteroidError("There is no checkpoint to export.")
        path = self._shell.directory / "jobs" / self.spec.name / "model.safetensors"
        checkpoint.save_model(self._need().model.export_state(self._checkpoints.read(latest)), path)
        self.narrator.tell_state(replace(self.job, phase="finishing"), str(path))
        median = self._score.median_round_s() if self._score else None
        predicted = self.job.plan.predicted_s if self.job.plan else None
        self.narrator.event(
            "done",
            f"trained {self.job.rounds} rounds; the model is in {path}",
            {"model_file": str(path), "measured_s": median or 0.0, "predicted_s": predicted or 0.0},
        )

    # Checkpoints

    def _load_state(self, start_round: int) -> Mapping[str, Array]:
        if start_round == 0:
            return self._need().model.all_state()
        latest = self._checkpoints.latest()
        if latest is None or latest.rounds != start_round:
            raise AsteroidError(f"The checkpoint of round {start_round} is missing or damaged.")
        return self._checkpoints.read(latest)

    def _exchange(self, item: StatePart | Question) -> None:
        assert self._link is not None
        if isinstance(item, Question):
            self._stock.answer(self._link, item)
        elif item.answer and item.generation == self.job.generation:
            self._stock.collected(self._link, item.source, item.data)
        else:
            self._keep_part(item)

    def _keep_part(self, part: StatePart) -> None:
        plan = self.job.plan
        if plan is None or part.generation != self.job.generation or part.source not in plan.devices:
            return
        parts = self._parts.setdefault(part.rounds, {})
        parts[plan.stage_of(part.source)] = part.data
        if len(parts) < len(plan.stages):
            return
        self._parts = {rounds: p for rounds, p in self._parts.items() if rounds > part.rounds}
        # A disk is slow, and losses must be answered meanwhile.
        threading.Thread(
            target=self._write_checkpoint, args=(part, list(parts.values())), name="checkpoint", daemon=True
        ).start()

    def _write_checkpoint(self, part: StatePart, parts: list[memoryview]) -> None:
        with self._writing:
            try:
                whole: dict[str, Array] = {}
                for data in parts:
                    whole.update(unpack(data))
                self._checkpoints.write(part.rounds, whole, {"generation": part.generation})
            except AsteroidError as error:
                # training goes on; the last good checkpoint is kept, and the next one may succeed
                self.narrator.event("checkpoint-failed", f"{error.what} {error.remedy}")
                self.inbox.put(CheckpointFailed(part.rounds))
                if part.rounds >= self.job.rounds:
                    self._fail(error)
                return
        self.inbox.put(Checkpointed(part.rounds, part.generation))

    # Link

    def _open_link(self) -> None:
        link = self._shell.open_link(self.spec.name)
        self._link = link

        def receive() -> None:
            while not self._ended.is_set():
                received = link.receive(0.5)
                if received is None:
                    continue
                tag, data = received.tag, received.tensor.data
                if tag.kind is Kind.STATE:
                    self.inbox.put(StatePart(received.src, tag.generation, tag.round, data, tag.index == ANSWER))
                elif tag.kind is Kind.ASK:
                    self.inbox.put(Question(received.src, tag, data))
                link.release(received)

        self._receiver = threading.Thread(target=receive, name=f"receive-{self.spec.name}", daemon=True)
        self._receiver.start()

    def _need(self) -> Imports:
        if self._imports is None:
            raise AsteroidError("The model has not been imported.")
        return self._imports

    def _drop_assignments(self, keep: Collection[str] = ()) -> None:
        for device in sorted(set(self._shell.registry.devices) - set(keep)):
            self.narrator.drop("job_assignment", agent=device)

    def _close(self) -> None:
        if self._feeder is not None:
            self._feeder.halt()
        self._ended.set()
        if self._receiver is not None:
            self._receiver.join(2.0)
        if self._link is not None:
            self._link.close()
