"""What a seed means: a cluster, a job, the weather, and a list of things that go wrong; and how such a run goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.broker import SimBroker, Weather
from tests.simulation.coordinator import Coordinator
from tests.simulation.device import Device, Process, SlowBackend, silence
from tests.simulation.job import Disk, Setting
from tests.simulation.links import SimTensorLink
from tests.simulation.model import Task
from tests.simulation.seams import feeder, replaced
from tests.simulation.watch import Watch, WatchedRunner, really_kept
from tests.simulation.world import World

from asteroid_coordinator.job.state import Job
from asteroid_core.program import StageProgram
from asteroid_core.wire.inbox import Received

PATIENCE = 900.0
"""Virtual seconds after the last fault within which the job must be done."""
NAMES = "abcdef"


@dataclass(frozen=True)
class Fault:
    """Something goes wrong at a moment, or so long after the so many-th step that a device takes."""

    at: float
    kind: str
    device: str = ""
    seconds: float = 0.0
    step: int = 0


@dataclass(frozen=True)
class Schedule:
    """A cluster, a job, and its bad luck.

    Attributes:
        seed: it was made from.
        devices: names.
        setting: the job.
        weather: of the network.
        faults: in order of time.
        pace: seconds of one forward or backward.
    """

    seed: int
    devices: tuple[str, ...]
    setting: Setting
    weather: Weather
    faults: tuple[Fault, ...]
    pace: float

    @property
    def end_of_faults(self) -> float:
        """From here on nothing goes wrong any more."""
        return max([self.weather.until, *(f.at + f.seconds for f in self.faults)], default=0.0)


KINDS: dict[str, float] = {
    "kill worker": 4,
    "lose power": 3,
    "kill supervisor": 1,
    "leave": 1.5,
    "cut worker": 1.5,
    "cut supervisor": 1,
    "stall worker": 1,
    "kill coordinator": 1,
    "full disk": 0.5,
}


def schedule(seed: int) -> Schedule:
    """The schedule of a seed."""
    random = Random(f"schedule {seed}")
    devices = tuple(NAMES[: random.choice([2, 3, 3, 4, 4, 5])])
    task = Task(
        layers=random.choice([3, 4, 5]),
        rounds=random.choice([4, 5, 6, 8]),
        tied=random.random() < 0.3,
        clip=random.random() < 0.3,
    )
    setting = Setting(
        task,
        snapshot_every=random.choice([0, 1, 1, 2, 2, 3]),
        checkpoint_every=random.choice([2, 3, 4, 100]),
        heavy=random.random() < 0.1,
    )
    stormy = random.random() < 0.6
    weather = Weather(
        loss=random.choice([0.0, 0.02, 0.1]) if stormy else 0.0,
        double=random.choice([0.0, 0.05, 0.2]) if stormy else 0.0,
        slow=random.choice([0.0, 0.05, 0.3]) if stormy else 0.0,
        late=random.choice([0.05, 0.5, 3.0]),
        until=random.uniform(2, 12) if stormy else 0.0,
    )
    return Schedule(seed, devices, setting, weather, _faults(random, devices), random.choice([0.005, 0.02, 0.05]))


def _faults(random: Random, devices: tuple[str, ...]) -> tuple[Fault, ...]:
    out: list[Fault] = []
    at = 0.0
    for _ in range(random.choice([0, 1, 1, 2, 2, 3, 4, 6])):
        together = bool(out) and random.random() < 0.35
        if together:
            at += random.choice([0.0, 0.001, 0.1 * random.random()])
        else:
            at += random.expovariate(1.2) if out else random.uniform(0.2, 3.5)
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        seconds = {
            "lose power": random.choice([1.0, 5.0, 20.0]) * (0.5 + random.random()),
            "kill supervisor": 0.5 + random.random(),
            "leave": random.choice([0.5, 5.0]) * (0.5 + random.random()),
            "cut worker": random.choice([0.0, 0.5, 3.0, 10.0]) * random.random(),
            "cut supervisor": random.choice([0.0, 0.5, 3.0, 10.0]) * random.random(),
            "stall worker": random.choice([0.5, 5.0, 30.0]) * random.random(),
            "kill coordinator": 0.2 + 2 * random.random(),
            "full disk": 3 * random.random(),
        }.get(kind, 0.0)
        device = random.choice(devices)
        if random.random() < 0.35:  # while some have stepped and others have not
            out.append(Fault(0.004 * random.random(), kind, device, seconds, random.randint(1, 5 * len(devices))))
        else:
            out.append(Fault(at, kind, device, seconds))
    return tuple(out)


@dataclass
class Outcome:
    """How a run went.

    Attributes:
        schedule: what was run.
        violations: empty if all is well.
        trace: the last events.
        seconds: virtual time at its end.
        generations: of the plan.
        counts: of what the job did.
    """

    schedule: Schedule
    violations: list[str]
    trace: list[str]
    seconds: float
    generations: int
    steps: int = 0
    errors: list[BaseException] = field(default_factory=list)

    def report(self, lines: int = 60) -> str:
        """For a person: what was violated, the last events, and how to see it again."""
        head = [f"seed {self.schedule.seed}: {text}" for text in self.violations]
        setting = self.schedule.setting
        head.append(f"{len(self.schedule.devices)} devices, {setting}, {self.schedule.weather}")
        for fault in self.schedule.faults:
            after = f"{fault.at:.3f} s after step {fault.step}" if fault.step else f"at {1 + fault.at:.3f}"
            head.append(f"fault {after}: {fault.kind} {fault.device} {fault.seconds:.2f}")
        again = f"again: python -m tests.simulation {self.schedule.seed}"
        return "\n".join([*head, *self.trace[-lines:], again])


class Cluster:
    """Everything of one run."""

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.watch = Watch(self.world, plan.setting.task)
        self.broker = SimBroker(self.world, plan.weather)
        self.disk = Disk()
        self.devices: dict[str, Device] = {}
        self.coordinator: Coordinator | None = None
        self._feeder = feeder(self.world)

    def run(self) -> Outcome:
        """From the first boot to the job's end."""
        world, plan = self.world, self.plan
        with self._seams():
            try:
                for name in plan.devices:
                    self.devices[name] = Device(world, self.watch, name)
                world.after(0.3, self._coordinate)
                for fault in plan.faults:
                    self._plan_fault(fault)
                limit = 1.0 + plan.end_of_faults + PATIENCE
                world.run(lambda: self.disk.result is not None, limit)
                if not world.violations:
                    self._judge()
            finally:
                world.close()
        generation = self.disk.generation
        return Outcome(plan, world.violations, list(world.trace), world.now, generation, world.steps, world.errors)

    def _judge(self) -> None:
        if self.disk.result is None:
            self.world.violate(f"the job is not done {PATIENCE:.0f} s after the last fault")
            return
        task = self.plan.setting.task
        self.watch.weights("the trained model", self.disk.result, task.rounds)
        if set(self.disk.result) != set(self.watch._wanted[task.rounds]):
            self.world.violate("the trained model is not whole")

    @contextmanager
    def _seams(self) -> Any:
        world, watch = self.world, self.watch
        pace = self.plan.pace

        class Engine(SlowBackend):
            seconds = pace

        Engine.world = world

        class Looked(WatchedRunner):
            @property
            def owner(self) -> Any:
                return world.current.owner if world.current is not None else None

        Looked.watch = watch

        def open_backend(_: str, program: StageProgram, state: Any, optimizer: Any, __: float) -> Engine:
            return Engine(program, state, optimizer)

        def check_answer(_: str, __: StageProgram) -> None:
            world.sleep(0.05 * world.random.random())

        def opened(link: SimTensorLink) -> None:
            assert world.current is not None
            process = world.current.owner
            assert isinstance(process, Process)
            process.link = link
            receive = link.receive

            def checked(timeout: float | None = None) -> Received | None:
                received = receive(timeout)
                if received is not None:
                    watch.received(process.config.agent, link._generation, received, None)
                return received

            link.receive = checked  # type: ignore[method-assign]

        with ExitStack() as stack:
            stack.enter_context(
                replaced(
                    world, self.broker, opened, open_backend=open_backend, check_answer=check_answer,
                    StageRunner=Looked, Feeder=self._feeder,
                )
            )  # fmt: skip
            yield

    def _kept(self, job: Job) -> list[set[str]]:
        keepers = {}
        for name, device in self.devices.items():
            process = device.process
            if process is not None and process.session is not None:
                keepers[name] = process.session._keeper
        return really_kept(keepers, self.watch.rebooted, job)

    # A person

    def _coordinate(self) -> None:
        """Start the coordinator, and again whenever it has died; then submit or resume the job."""
        self.coordinator = Coordinator(
            self.world, self.broker, self.watch, self.plan.setting, self.disk, self._kept, self._feeder
        )
        mine = self.coordinator

        def attend() -> None:
            if self.coordinator is not mine:
                return
            enough = 1 if self.disk.begun else 2
            if mine.idle and self.disk.result is None and len(mine.registry.present()) >= enough:
                mine.begin()
            self.world.after(1.0, attend)

        self.world.after(0.5 + self.world.random.random(), attend)

    # Faults

    def _plan_fault(self, fault: Fault) -> None:
        world = self.world
        if not fault.step:
            world.at(1.0 + fault.at, lambda: self._strike(fault))
            return
        later = self.watch.at_step.setdefault(fault.step, [])
        later.append(lambda: world.after(fault.at, lambda: self._strike(fault)))

    def _strike(self, fault: Fault) -> None:
        world = self.world
        if fault.kind == "kill coordinator":
            if self.coordinator is not None:
                self.coordinator.die()
                self.coordinator = None
                world.after(fault.seconds, self._coordinate)
            return
        if fault.kind == "full disk":
            world.say("the disk is full")
            self.disk.broken = world.now + fault.seconds
            return
        device = self.devices[fault.device]
        process = device.process
        acts: dict[str, Callable[[], object]] = {
            "kill worker": lambda: process.die("SIGKILL") if process is not None else None,
            "lose power": lambda: device.crash(True, fault.seconds),
            "leave": lambda: device.leave(fault.seconds),
            "kill supervisor": lambda: device.crash(False, fault.seconds),
            "cut worker": lambda: device.cut_worker(fault.seconds),
            "cut supervisor": lambda: device.cut_supervisor(fault.seconds),
            "stall worker": lambda: device.stall(fault.seconds),
        }
        acts[fault.kind]()


def run(seed: int) -> Outcome:
    """Run the schedule of a seed."""
    silence()
    return Cluster(schedule(seed)).run()
