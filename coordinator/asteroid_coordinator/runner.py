"""One job's thread: takes events from its inbox, asks ``job.decide`` what to do, does it.

The only place where a job touches the model, the data, the store, the broker. It owns the job's state; everybody else
only puts events into ``inbox``.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asteroid_coordinator import checkpoint
from asteroid_coordinator.cluster.registry import Registry
from asteroid_coordinator.inspecting import Inspector
from asteroid_coordinator.job.decide import decide
from asteroid_coordinator.job.state import (
    ENDED,
    Broken,
    Checkpointed,
    CheckpointFailed,
    Consider,
    Effect,
    Export,
    Feed,
    Halt,
    Import,
    Imported,
    Job,
    JobEvent,
    Late,
    MakePlan,
    Mode,
    Planned,
    Prepare,
    Profile,
    Profiled,
    Proposed,
    Recall,
    Release,
    Say,
    StopAsked,
    StopFeed,
    Submitted,
    TakenOver,
    Way,
)
from asteroid_coordinator.line import Line
from asteroid_coordinator.narrator import Narrator
from asteroid_coordinator.orders import assignment, command
from asteroid_coordinator.planning import PlannedJob, plan_job
from asteroid_coordinator.profiling import Profiler
from asteroid_coordinator.reports import translate
from asteroid_coordinator.saving import Saver
from asteroid_coordinator.scoreboard import Scoreboard
from asteroid_coordinator.stock import Question, StatePart, Stock, asked
from asteroid_coordinator.takeover import Record, alive, wait_for_workers
from asteroid_coordinator.watch import Watch
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Plan
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import (
    Command,
    DeviceMemory,
    JobPhase,
    JobSpecMessage,
    PlanSummary,
    Report,
    WorkerStatus,
)
from asteroid_core.wire.safe import Array

if TYPE_CHECKING:
    from asteroid_coordinator.importing import Imports
    from asteroid_coordinator.store import Store

log = logging.getLogger(__name__)

READY_S = 120.0
"""Time that workers have to load their stage and pass the known-answer test."""

HALT_S = 10.0
"""Time that workers have to say how far they are, beside a few predicted rounds."""


WORTH = 0.9
"""A plan that was made beside training is taken if its round takes at most this part of the present one."""


@dataclass(frozen=True)
class Shell:
    """What a job needs of the service around it."""

    session: str
    store: Store
    directory: Path
    registry: Registry
    publish: Callable[[str, bytes, bool], None]
    command: Callable[[str, Command], None]
    workers: Callable[[str], Mapping[str, WorkerStatus]]
    open_link: Callable[[str], TensorLink]
    profiler: Callable[[], Profiler]
    inspector: Callable[[], Inspector]


class JobRunner(threading.Thread):
    """Runs one job from submission to its end."""

    def __init__(
        self,
        spec: JobSpec,
        mode: Mode,
        shell: Shell,
        *,
        generation: int = 0,
        resume: bool = False,
        record: Record | None = None,
    ) -> None:
        super().__init__(name=f"job-{spec.name}", daemon=True)
        self.spec, self._shell, self._mode = spec, shell, mode
        self._record, self._generation, self._resume = record, generation, resume
        self.run_id = secrets.token_hex(8) if record is None else record.run
        self.inbox: queue.Queue[JobEvent | StatePart | Question | Report] = queue.Queue()
        self.job = Job(name=spec.name)
        self.watch = Watch(spec.name, self.inbox.put)
        self.narrator = Narrator(spec.name, shell.store, shell.publish)
        self._checkpoints = checkpoint.Checkpoints(shell.directory / "jobs" / spec.name, keep=spec.checkpoint.keep)
        self._saver = Saver(self._checkpoints, self._saved, self._not_saved)
        self._imports: Imports | None = None
        self._line: Line | None = None
        self._stock = Stock()
        self._snapshot_every = 0
        self._proposed: PlannedJob | None = None
        self._score: Scoreboard | None = None
        self._ended = threading.Event()
        self._cancelled = threading.Event()

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
        self.watch.start()
        try:
            self._take(self._first())
            while self.job.phase not in ENDED:
                self._take(self.inbox.get())
        finally:
            self.watch.stop()
            if self._line is not None:
                self._line.close()
            self._ended.set()

    def _first(self) -> JobEvent:
        """What this run begins with: workers that outlived another coordinator, a checkpoint, or nothing."""
        latest = self._checkpoints.latest() if self._resume else None
        saved = latest.rounds if latest is not None else 0
        if (record := self._record) is not None:
            found = wait_for_workers(record, lambda: self._alive(record), self._cancelled.is_set)
            if found and record.job.plan is not None:
                self.narrator.adopt(record.job.plan.devices)
                return TakenOver(record.job, found, saved)
            self.run_id = secrets.token_hex(8)
        return Submitted(self._mode, saved, self._generation, heavy=self.spec.replication.recovery == "heavy")

    def _alive(self, record: Record) -> frozenset[str]:
        present = {device.name for device in self._shell.registry.present()}
        return alive(record, self._shell.workers(self.spec.name), present)

    def _take(self, item: JobEvent | StatePart | Question | Report) -> None:
        self.narrator.heard(item)
        if isinstance(item, StatePart | Question):
            self._guard(partial(self._exchange, item))
            return
        if isinstance(item, Report):
            self._keep_score(item)
            if (event := translate(item)) is not None:
                self._step(event)
        elif not self.watch.takes(self.job, item):
            self._step(item)

    def _step(self, event: JobEvent) -> None:
        before, old = self.job.phase, self.job
        self.job, effects = decide(self.job, event)
        if replace(self.job, reported=()) != replace(old, reported=()):
            # Before anything is done: who takes over must never know less than the workers do.
            self._shell.store.set_run(self.spec.name, Record(self.run_id, self.job).to_text())
        self.watch.follow(self.job)
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

    def _keep_score(self, report: Report) -> None:
        if self._score is None or report.kind not in ("round", "validation"):
            return
        metrics = self._score.add(report)
        if metrics is None:
            return
        self.narrator.metrics(metrics)
        if metrics.kind == "validation":
            accuracy = "" if metrics.accuracy is None else f", accuracy {metrics.accuracy:.2%}"
            self.narrator.event(
                "validation",
                f"round {metrics.round + 1}: loss {metrics.loss or 0.0:.4f}{accuracy}",
                {"round": metrics.round, "loss": metrics.loss, "accuracy": metrics.accuracy},
            )

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Say(kind=kind, text=text, data=data):
                self.narrator.event(kind, text, data)
            case Import():
                if self._import():
                    self.inbox.put(Imported(self._need().rounds))
            case Recall():
                if self._import():
                    self._profile(known=True)
            case Profile():
                self._profile()
            case MakePlan():
                self._plan(effect)
            case Consider():
                threading.Thread(target=self._consider, args=(effect,), name="planner", daemon=True).start()
            case Prepare():
                self._prepare(effect)
            case Halt(plan=plan):
                self._deadline(HALT_S + 5 * (plan.predicted_s or 0.0), "halting")
            case Feed(start_round=start_round):
                self._feed(start_round)
            case StopFeed():
                if self._line is not None:
                    self._line.stop_feeding()
            case Release(devices=devices):
                self._release(devices)
            case Export():
                self._export()

    def _import(self) -> bool:
        """Export the model; False if the job was given up meanwhile."""
        from asteroid_coordinator.importing import import_job  # torch: only when a job needs it

        self.narrator.tell_state(self.job)
        data = None
        if self.spec.data.owner != COORDINATOR:
            data = self._shell.inspector().look(self.spec, self._cancelled.is_set)
            if data is None:
                return False  # the inbox holds why
            self.narrator.event("data", f"{data.agent} has {data.text}")
        self._imports = import_job(self.spec, data)
        if self.job.phase == "profiling":
            for note in self._imports.notes:
                self.narrator.event("note", note)
        return True

    def _profile(self, known: bool = False) -> None:
        imports = self._need()
        measured = self._shell.profiler().measure(
            self.spec, imports, self.narrator.event, self._cancelled.is_set, known
        )
        if self._cancelled.is_set():
            return  # the inbox holds why
        imports.profiles.update(measured.profiles)
        imports.hub_bytes_per_s = measured.links.hub_bytes_per_s
        imports.coordinator = measured.links.coordinator
        self.inbox.put(Profiled(tuple(sorted(measured.profiles)), tuple(measured.failed.items())))

    def _plan(self, effect: MakePlan) -> None:
        made = self._make(effect.generation, effect.without, effect.way, effect.old)
        if made.note:
            self.narrator.event("note", made.note)
        self._show(made)
        self.inbox.put(Planned(made.outcome.plan, made.way))

    def _make(self, generation: int, without: frozenset[str], way: Way, old: Plan | None) -> PlannedJob:
        imports = self._need()
        present = {d.name: d for d in self._shell.registry.present() if d.name not in without}
        usable = {name: p for name, p in imports.profiles.items() if name in present}
        if not usable:
            why = "".join(f" {name}: {reason.rstrip('.')}." for name, reason in self.job.excluded)
            raise InputError(
                f"No device is left to train on.{why}",
                f"Start an agent, then: asteroid resume {self.spec.name}",
            )
        devices = {n: d for n, d in present.items() if n in usable}
        return plan_job(self.spec, imports, usable, devices, generation, way, old)

    def _consider(self, effect: Consider) -> None:
        """Plan beside training; what goes wrong leaves the job as it is."""
        try:
            if not effect.must:
                self._profile(known=False)
            generation = effect.generation + 1
            made = self._make(generation, effect.without, "replay" if effect.must else "full", effect.old)
        except AsteroidError as error:
            self.narrator.event("note", f"no plan {effect.why}: {error.what}")
            return
        better, now = made.outcome.plan.predicted_s, effect.old.predicted_s
        if effect.must or (better is not None and now is not None and better < WORTH * now):
            self._proposed = made
            self.inbox.put(Proposed(made.outcome.plan, effect.generation, f"a plan {effect.why} is taken"))

    def _show(self, made: PlannedJob) -> None:
        imports, outcome = self._need(), made.outcome
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

    def _prepare(self, effect: Prepare) -> None:
        imports = self._need()
        plan, start_round = effect.plan, effect.start_round
        proposed, self._proposed = self._proposed, None
        if proposed is not None and proposed.outcome.plan.generation == plan.generation:
            self._show(proposed)
        if self._line is None:
            self._line = Line(self._shell.open_link(self.spec.name), self.inbox.put)
        link = self._line.link
        link.set_generation(plan.generation)
        self._saver.clear()
        self._drop_assignments(keep={*plan.devices, *effect.serving})
        self._score = Scoreboard(self.spec.name, self.job.rounds, plan)
        programs = {s: imports.model.stage(s.lo, s.hi).to_bytes() for s in plan.stages}
        self._stock = Stock(
            generation=plan.generation,
            start_round=start_round,
            programs={device: programs[stage] for stage in plan.stages for device in stage.devices},
            load=lambda: self._load_state(start_round),
        )
        if self.job.heavy and not effect.saved:
            self._stock.collect(link, asked(self.job.held, start_round, plan.layers, imports.model.state_names))
        # First those who give: their snapshots are there when the others ask.
        for device in (*sorted(effect.serving), *plan.devices):
            self._assign(effect, device)
        self._deadline(READY_S, "preparing")

    def _deadline(self, seconds: float, phase: JobPhase) -> None:
        late = Late(self.job.generation, phase)
        timer = threading.Timer(seconds, lambda: self.inbox.put(late))
        timer.daemon = True
        timer.start()

    def _assign(self, effect: Prepare, device: str) -> None:
        given = assignment(effect, device, self.job, self._need(), self._stock, self._snapshot_every, self.run_id)
        self.narrator.keep("job_assignment", given, agent=device)
        if device not in effect.serving:  # its worker runs, and its supervisor may be on its way out
            self._command(device, "prepare")

    def _command(self, device: str, verb: Literal["prepare", "stop"]) -> None:
        self._shell.command(device, command(self.job, verb, self._shell.session, self.run_id))

    def _feed(self, start_round: int) -> None:
        if self.spec.data.owner != COORDINATOR:
            return  # the worker there feeds, once it is ready
        assert self._line is not None
        assert self.job.plan is not None

        def failed(error: Exception) -> None:
            if isinstance(error, AsteroidError):
                self._fail(error)
            else:
                what = f"The data cannot be read: {type(error).__name__}: {error}."
                self.inbox.put(Broken(what, "Mend the data set, then resume the job.", 2))

        self._line.feed(self._need(), self.job.plan, start_round, failed)

    def _release(self, devices: tuple[str, ...]) -> None:
        for device in devices:
            self._command(device, "stop")

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
        assert self._line is not None
        if isinstance(item, Question):
            self._stock.answer(self._line.link, item)
        elif item.answer and item.generation == self.job.generation:
            self._stock.collected(self._line.link, item.source, item.data)
        elif self.job.plan is not None and item.generation == self.job.generation:
            self._saver.add(item, self.job.plan)

    def _saved(self, rounds: int, generation: int) -> None:
        self.inbox.put(Checkpointed(rounds, generation))

    def _not_saved(self, rounds: int, error: AsteroidError) -> None:
        self.narrator.event("checkpoint-failed", f"{error.what} {error.remedy}")
        self.inbox.put(CheckpointFailed(rounds))
        if rounds >= self.job.rounds:
            self._fail(error)

    def _need(self) -> Imports:
        if self._imports is None:
            raise AsteroidError("The model has not been imported.")
        return self._imports

    def _drop_assignments(self, keep: Collection[str] = ()) -> None:
        for device in sorted(set(self._shell.registry.devices) - set(keep)):
            self.narrator.drop("job_assignment", agent=device)
