"""A job's thread as a task: asks the real ``decide`` what to do and does it, as ``runner.JobRunner`` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation import planning
from tests.simulation.broker import SimBroker, SimTransport
from tests.simulation.links import SimTensorLink
from tests.simulation.model import Task
from tests.simulation.watch import Watch
from tests.simulation.world import Inbox, World
from tests.simulation.world import Task as Running

from asteroid_coordinator.cluster.registry import Registry
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
    Kept,
    Late,
    MakePlan,
    Planned,
    Prepare,
    Profile,
    Profiled,
    Proposed,
    Recall,
    Release,
    Say,
    StopFeed,
    Submitted,
    TakenOver,
)
from asteroid_coordinator.narrator import Narrator
from asteroid_coordinator.reports import translate
from asteroid_coordinator.runner import HALT_S, READY_S
from asteroid_coordinator.stock import Question, StatePart, Stock, asked
from asteroid_coordinator.takeover import WAIT_S, Record, alive
from asteroid_core.errors import AsteroidError
from asteroid_core.ids import COORDINATOR
from asteroid_core.rounds import passes
from asteroid_core.wire.messages import (
    NO_STAGE,
    Assignment,
    Command,
    JobPhase,
    Report,
    WorkerStatus,
)
from asteroid_core.wire.safe import Array, unpack
from asteroid_core.wire.tensor import ANSWER, Kind

JOB = "simulated"


@dataclass
class Disk:
    """What outlives a coordinator.

    Attributes:
        checkpoints: states by rounds.
        state: the last state of the job that was told.
        begun: whether the job was submitted.
        broken: checkpoints cannot be written before this moment.
        result: the exported state.
    """

    checkpoints: dict[int, dict[str, Array]] = field(default_factory=dict)
    generation: int = 0
    begun: bool = False
    broken: float = 0.0
    result: Mapping[str, Array] | None = None
    record: str | None = None
    sequence: int = 0

    @property
    def latest(self) -> int:
        """Rounds of the newest checkpoint; 0: there is none."""
        return max(self.checkpoints, default=0)

    def write(self, rounds: int, state: dict[str, Array]) -> None:
        self.checkpoints[rounds] = state
        for old in sorted(self.checkpoints)[:-2]:
            del self.checkpoints[old]

    # What ``Narrator`` asks of a store.

    def append(self, job: str, body: Mapping[str, Any]) -> int:
        self.sequence += 1
        return self.sequence

    def set_snapshot(self, job: str, text: str) -> None:
        self.generation = int(json.loads(text)["generation"])


@dataclass(frozen=True)
class Setting:
    """How a job is run: what it trains, how often state is kept, and how it recovers."""

    task: Task
    snapshot_every: int
    checkpoint_every: int
    heavy: bool = False


class Service(Protocol):
    """What a job needs of the coordinator around it."""

    world: World
    broker: SimBroker
    watch: Watch
    setting: Setting
    disk: Disk
    session: str
    registry: Registry
    workers: dict[str, WorkerStatus]
    links: list[Any]
    kept: Callable[[Job], list[set[str]]]
    feeder_class: Any

    def publish(self, topic: str, payload: bytes, retain: bool) -> None: ...

    def command(self, device: str, command: Command) -> None: ...


class Runner:
    """See the module's header."""

    def __init__(self, service: Service, first: Submitted, record: Record | None = None) -> None:
        self.run = service.session if record is None else record.run
        self._first, self._record = first, record
        self._service, self.world = service, service.world
        self.setting, self.disk = service.setting, service.disk
        self.inbox: Inbox[Any] = Inbox(self.world)
        self.job = Job(name=JOB)
        self.narrator = Narrator(JOB, self.disk, service.publish)  # type: ignore[arg-type]
        self._link: SimTensorLink | None = None
        self._stock = Stock()
        self._feeder: Any = None
        self._parts: dict[int, dict[int, memoryview]] = {}
        self._writes: Inbox[tuple[StatePart, list[memoryview]]] = Inbox(self.world)
        self._tasks: list[Running] = [self.world.spawn("job", self._run)]

    def die(self) -> None:
        for task in self._tasks:
            task.kill()

    def _run(self) -> None:
        self._tasks.append(self.world.spawn("checkpoints", self._write))
        self._step(self._begin())
        while self.job.phase not in ENDED:
            item = self.inbox.get()
            if isinstance(item, StatePart | Question):
                self._guard(lambda item=item: self._exchange(item))  # type: ignore[misc]
            elif isinstance(item, Report):
                if (event := translate(item)) is not None:
                    self._step(event)
            else:
                self._step(item)
        if self._feeder is not None:
            self._feeder.halt()
        self.world.sleep(0.02)
        if self._link is not None:
            self._link.close()

    def _begin(self) -> JobEvent:
        record = self._record
        if record is None:
            return self._first
        assert record.job.plan is not None
        wanted = set(record.job.plan.devices) - {name for name, _ in record.job.excluded}
        until = self.world.now + WAIT_S
        while not wanted <= (found := alive(record, self._service.workers, self._present())):
            if self.world.now > until:
                break
            self.world.sleep(0.1)
        if found:
            return TakenOver(record.job, found, self._first.saved)
        self.run = self._service.session
        return self._first

    def _step(self, event: JobEvent) -> None:
        old = self.job
        self.job, effects = decide(old, event)
        self.disk.record = Record(self.run, self.job).to_text()
        if self.job is not old:
            where = f"{self.job.phase} generation {self.job.generation} completed {self.job.completed}"
            self.world.say(f"job: {_short(event)} -> {where} durable {self.job.durable} saved {self.job.saved}")
        self._service.watch.job(self.run, old, event, self.job, self._service.kept)
        for effect in effects:
            if not self._guard(lambda effect=effect: self._perform(effect)):  # type: ignore[misc]
                break
            self._pause()
        if isinstance(event, Broken) and old.phase not in ENDED:
            self._service.watch.broken(event.what)
        if old.phase not in ENDED and self.job.phase in ENDED:
            self._drop_assignments()
        self.narrator.tell_state(self.job)

    def _pause(self) -> None:
        """A coordinator may be killed between any two things that it does."""
        if self.world.random.random() < 0.2:
            self.world.sleep(0.02 * self.world.random.random())

    def _guard(self, do: Callable[[], None]) -> bool:
        try:
            do()
        except AsteroidError as error:
            self.inbox.put(Broken(error.what, error.remedy, error.exit_code))
            return False
        return True

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Say(text=text):
                self.world.say(f"story: {text}")
                self.narrator.event(effect.kind, text, effect.data)
            case Import():
                self.narrator.tell_state(self.job)
                self.inbox.put(Imported(self.setting.task.rounds))
            case Profile():
                self._profile()
            case Recall():
                self.world.sleep(0.5)
            case MakePlan():
                self._plan(effect)
            case Consider():
                self._tasks.append(self.world.spawn("planner", lambda: self._consider(effect)))
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
                for device in devices:
                    self._command(device, "stop")
            case Export():
                self.disk.result = self.disk.checkpoints[self.disk.latest]

    def _present(self) -> list[str]:
        return [device.name for device in self._service.registry.present()]

    def _profile(self) -> None:
        self.world.sleep(0.5)
        if not self._present():
            raise AsteroidError("No device is there.", "Start an agent.")
        self.inbox.put(Profiled(tuple(self._present())))

    def _plan(self, effect: MakePlan) -> None:
        random = self.world.random
        self.world.sleep(0.3 * random.random())
        present = [name for name in self._present() if name not in effect.without]
        if not present:
            raise AsteroidError("No device is left to train on.", "Start an agent, then resume.")
        setting = self.setting
        plan, way = planning.make(effect, setting.task, present, setting.snapshot_every > 0, random)
        self.inbox.put(Planned(plan, way))

    def _consider(self, effect: Consider) -> None:
        random = self.world.random
        self.world.sleep(0.5 * random.random())
        present = [name for name in self._present() if name not in effect.without]
        if not present:
            return
        asked = MakePlan(effect.generation + 1, effect.without, "replay" if effect.must else "full", effect.old)
        plan, _ = planning.make(asked, self.setting.task, present, self.setting.snapshot_every > 0, random)
        self.inbox.put(Proposed(plan, effect.generation, f"a plan {effect.why} is taken"))

    def _prepare(self, effect: Prepare) -> None:
        plan, start = effect.plan, effect.start_round
        task = self.setting.task
        if self._link is None:
            self._open_link()
        assert self._link is not None
        self._link.set_generation(plan.generation)
        self._parts.clear()
        self._drop_assignments(keep={*plan.devices, *effect.serving})
        self._stock = Stock(
            generation=plan.generation,
            start_round=start,
            programs={d: task.program(s.lo, s.hi).to_bytes() for s in plan.stages for d in s.devices},
            load=lambda: self._load_state(start),
        )
        if self.job.heavy and not effect.saved:
            self._stock.collect(self._link, asked(self.job.held, start, plan.layers, task.state_names))
        for device in (*sorted(effect.serving), *plan.devices):
            self._assign(effect, device)
        self._deadline(READY_S, "preparing")

    def _deadline(self, seconds: float, phase: JobPhase) -> None:
        late = Late(self.job.generation, phase)
        self.world.after(seconds, lambda: self.inbox.put(late))

    def _assign(self, effect: Prepare, device: str) -> None:
        plan, setting = effect.plan, self.setting
        feed = setting.task.feed()
        assignment = Assignment(
            job=JOB,
            agent=device,
            plan=plan,
            stage=NO_STAGE if device in effect.serving else plan.stage_of(device),
            train=setting.task.train,
            optimizer=setting.task.optimizer,
            program_sha256="" if device in effect.serving else self._stock.sha256(device),
            program_bytes=0 if device in effect.serving else len(self._stock.programs[device]),
            sources=dict(effect.sources).get(device, ()),
            live=effect.live,
            moved=device in effect.moved,
            scale=effect.scale,
            base=effect.base,
            start_saved=effect.saved,
            snapshot_every=setting.snapshot_every if len(plan.devices) > 1 else 0,
            start_round=effect.start_round,
            rounds=self.job.rounds,
            samples=len(feed.split.training),
            validation=len(feed.split.validation),
            checkpoint_every=setting.checkpoint_every,
            data_owner=COORDINATOR,
            session=self.run,
        )
        self.narrator.keep("job_assignment", assignment, agent=device)
        self._pause()
        if device not in effect.serving:
            self._command(device, "prepare")

    def _command(self, device: str, verb: Any) -> None:
        session, generation = self._service.session, self.job.generation
        name = f"{JOB}-{generation}-{verb}-{session[:8]}"
        command = Command(id=name, verb=verb, job=JOB, generation=generation, session=session, run=self.run)
        self._service.command(device, command)

    def _feed(self, start_round: int) -> None:
        plan, task = self.job.plan, self.setting.task
        assert plan is not None
        feed = task.feed()
        steps = passes(feed.rounds, start_round, len(feed.split.validation), task.train.validate_every)
        self._feeder = self._service.feeder_class(self._link, feed, plan, steps, self._broken)
        self._feeder.start()

    def _broken(self, error: Exception) -> None:
        self.world.violate(f"the feeder fails: {error}", error)

    def _load_state(self, start_round: int) -> Mapping[str, Array]:
        if start_round == 0:
            return self.setting.task.initial()
        if self.disk.latest != start_round:
            raise AsteroidError(f"The checkpoint of round {start_round} is missing or damaged.")
        return self.disk.checkpoints[start_round]

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
        if len(parts) == len(plan.stages):
            self._parts = {rounds: p for rounds, p in self._parts.items() if rounds > part.rounds}
            self._writes.put((part, list(parts.values())))

    def _write(self) -> None:
        while True:
            part, parts = self._writes.get()
            self.world.sleep(0.3 * self.world.random.random())
            if self.disk.broken > self.world.now:
                self.inbox.put(CheckpointFailed(part.rounds))
                if part.rounds >= self.job.rounds:
                    self.inbox.put(Broken("The disk is full."))
                continue
            whole: dict[str, Array] = {}
            for data in parts:
                whole.update(unpack(data))
            self._service.watch.weights("the checkpoint", whole, part.rounds)
            self.disk.write(part.rounds, whole)
            self.inbox.put(Checkpointed(part.rounds, part.generation))

    def _open_link(self) -> None:
        transport = SimTransport(
            self._service.broker, f"asteroid-{JOB}-{COORDINATOR}-{self.world.random.getrandbits(24):06x}"
        )
        link = self._link = SimTensorLink(self.world, transport, JOB, COORDINATOR)
        self._service.links.append(link)
        link.open()
        self._tasks.append(self.world.spawn("receiver", lambda: self._receive(link)))

    def _receive(self, link: SimTensorLink) -> None:
        while self.job.phase not in ENDED:
            received = link.receive(0.5)
            if received is None:
                continue
            tag, data = received.tag, received.tensor.data
            if tag.kind is Kind.STATE:
                self.inbox.put(StatePart(received.src, tag.generation, tag.round, data, tag.index == ANSWER))
            elif tag.kind is Kind.ASK:
                self.inbox.put(Question(received.src, tag, data))
            link.release(received)

    def _drop_assignments(self, keep: Collection[str] = ()) -> None:
        for device in sorted(set(self._service.registry.devices) - set(keep)):
            self.narrator.drop("job_assignment", agent=device)


def _short(event: JobEvent) -> str:
    match event:
        case Planned(plan=plan, way=way):
            return f"Planned({way}: {plan.describe()})"
        case Kept(held=held):
            return f"Kept({held.device} g{held.generation} r{held.rounds} {held.lo}-{held.hi})"
        case _:
            return str(event)
