"""A device: the product's supervisor and workers as tasks, with processes that can be killed and a plug to pull."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from tests.simulation.links import SimTensorLink
from tests.simulation.model import NumpyBackend
from tests.simulation.watch import Watch
from tests.simulation.world import Clock, Inbox, World

from asteroid_agent.backend.base import SampleKeys, Scores
from asteroid_agent.supervisor import service
from asteroid_agent.supervisor.children import Ended
from asteroid_agent.supervisor.events import ChildExited, ChildStarted, Launch
from asteroid_agent.supervisor.state import State
from asteroid_agent.worker import main as worker_main
from asteroid_agent.worker.config import MqttConfig, WorkerConfig
from asteroid_agent.worker.pulse import Pulse
from asteroid_agent.worker.session import Session
from asteroid_core.errors import AsteroidError
from asteroid_core.link.base import Broker
from asteroid_core.wire.messages import AgentInfo, Telemetry
from asteroid_core.wire.tensor import Tensor

AT_ONCE, MUCH_LATER = 0.003, 90.0
"""When the broker notices that a process was killed, and that a worker's whole device is gone."""
SOON = 7.5
"""When it notices that a supervisor's whole device is gone: its keep-alive is short."""


class SlowBackend(NumpyBackend):
    """Computing takes virtual time."""

    world: World
    seconds: float = 0.01

    def _work(self) -> None:
        self.world.sleep(self.seconds * (0.5 + self.world.random.random()))

    def forward(self, micro: int, inputs: Sequence[Tensor], *, train: bool, samples: SampleKeys | None) -> list[Tensor]:
        self._work()
        return super().forward(micro, inputs, train=train, samples=samples)

    def forward_loss(
        self,
        micro: int,
        inputs: Sequence[Tensor],
        target: Tensor,
        normaliser: float,
        *,
        train: bool,
        samples: SampleKeys | None,
    ) -> Scores:
        self._work()
        return super().forward_loss(micro, inputs, target, normaliser, train=train, samples=samples)

    def backward(self, micro: int, grads: Sequence[Tensor] | None) -> list[Tensor]:
        self._work()
        return super().backward(micro, grads)


class Process:
    """A worker process."""

    def __init__(self, device: Device, number: int, config: WorkerConfig) -> None:
        self.device, self.number, self.config = device, number, config
        self.world = device.world
        self.link: SimTensorLink | None = None
        self.session: Session | None = None
        self.exit: ChildExited | None = None
        self.task = self.world.spawn(f"worker {number} of {config.agent}", self._main)
        self.task.owner = self
        self.world.say(f"{config.agent} starts worker {number} for generation {config.generation}")

    def _main(self) -> None:
        """What ``worker.main.main`` does."""
        self.world.sleep(0.05 + 0.3 * self.world.random.random())
        code = 0
        try:
            shell = worker_main.Shell(self.config)
        except AsteroidError as error:
            self._end(ChildExited(self.number, code=error.exit_code))
            return
        try:
            self.session = Session(self.config, shell.link, shell, Clock(self.world), lambda: None, Pulse())
            self.session.run()
        except Exception as error:
            self.device.watch.failed(self.config.agent, error)
            code = error.exit_code if isinstance(error, AsteroidError) else 1
            shell.tell("failed", 0, str(error))
            self.world.sleep(0.05)
            shell.link.close()
        self._end(ChildExited(self.number, code=code))

    def _end(self, how: ChildExited) -> None:
        if self.exit is None:
            self.exit = how
            self.device.children_ended(self.number)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.exit is None

    def die(self, signal: str, notice: float = AT_ONCE) -> None:
        """End it at once; from the loop only."""
        if self.exit is not None:
            return
        self.world.say(f"worker {self.number} of {self.config.agent} dies ({signal})")
        self.device.watch.rebooted.add(self.config.agent)
        if self.link is not None:
            self.link.die(notice)
        self.task.kill()
        self._end(ChildExited(self.number, signal=signal))


class _Children:
    """Stands for ``supervisor.children.Children``."""

    def __init__(self, device: Device, put: Any) -> None:
        self._device, self._put = device, put
        self.processes: dict[int, Process] = {}

    def spawn(self, number: int, launch: Launch) -> ChildStarted:
        self.processes[number] = Process(self._device, number, self._device.configure(launch))
        return ChildStarted(number, number)

    def kill(self, number: int, hard: bool) -> None:
        process = self.processes.get(number)
        if process is not None:
            world = self._device.world
            name = "SIGKILL" if hard else "SIGTERM"
            world.after(0.0 if hard else 0.2 * world.random.random(), lambda: process.die(name))

    def reap(self, number: int) -> ChildExited | None:
        process = self.processes.pop(number, None)
        return process.exit if process is not None else None

    def ended(self, number: int) -> None:
        self._put(Ended(number))

    def close(self) -> None:
        for process in self.processes.values():
            self._device.world.after(0.0, lambda p=process: p.die("SIGKILL"))  # type: ignore[misc]


class _Quiet:
    """No service manager."""

    watchdog_s = None

    def ready(self, status: str) -> None:
        pass

    def status(self, text: str) -> None:
        pass

    def stopping(self, status: str) -> None:
        pass

    def watchdog(self) -> None:
        pass


class _Service(service.Service):
    """The product's supervisor with a simulated inbox and simulated processes."""

    def __init__(self, device: Device) -> None:
        info = AgentInfo(agent=device.name, cores=1.0, memory_mb=1000, budget_mb=500)
        state = State(device.name, info, telemetry_s=1e9)
        parts = service.Parts(
            Broker("simulated"), state, device.configure, lambda: Telemetry(agent=device.name), _Quiet()
        )
        super().__init__(parts)
        self._inbox = cast("Any", Inbox(device.world))
        self.children = _Children(device, self._inbox.put)
        self._children = cast("Any", self.children)

    @property
    def uplink(self) -> Any:
        """Its connection."""
        return self._uplink


class Device:
    """See the module's header."""

    def __init__(self, world: World, watch: Watch, name: str) -> None:
        self.world, self.watch, self.name = world, watch, name
        self._service: _Service | None = None
        self._task: Any = None
        self._away = 0.0
        self.boot()

    def configure(self, launch: Launch) -> WorkerConfig:
        return WorkerConfig(
            agent=self.name,
            job=launch.job,
            mode=launch.mode,
            session=launch.session,
            generation=launch.generation,
            mqtt=MqttConfig(host="simulated"),
            cores=1.0,
            budget_mb=500,
        )

    @property
    def up(self) -> bool:
        """Whether its supervisor runs."""
        return self._service is not None

    @property
    def process(self) -> Process | None:
        """Its living worker."""
        if self._service is None:
            return None
        return next((p for p in self._service.children.processes.values() if p.alive), None)

    def children_ended(self, number: int) -> None:
        if self._service is not None:
            self._service.children.ended(number)

    def boot(self) -> None:
        """Switch on."""
        if self._service is None:
            self._service = _Service(self)
            self._task = self.world.spawn(f"supervisor of {self.name}", self._run)
            self.world.say(f"{self.name} boots")

    def _run(self) -> None:
        mine = self._service
        assert mine is not None
        mine.run()
        if self._service is mine:
            self.world.say(f"{self.name} has left")
            self._service = None
            self.world.after(self._away, self.boot)

    def leave(self, seconds: float) -> None:
        """The agent is stopped as a service manager does it, for a while."""
        if self._service is not None:
            self.world.say(f"{self.name} is asked to leave")
            self.watch.rebooted.add(self.name)
            self._away = seconds
            self._service.signal("SIGTERM")

    def crash(self, gone: bool, seconds: float) -> None:
        """The supervisor and its worker die, for a while; if the device is ``gone``, no connection is closed."""
        found, self._service = self._service, None
        if found is None:
            return
        self.world.say(f"{self.name} {'loses power' if gone else 'loses its supervisor'}")
        self.watch.rebooted.add(self.name)
        for process in list(found.children.processes.values()):
            process.die("SIGKILL", MUCH_LATER if gone else AT_ONCE)
        if found.uplink is not None:
            found.uplink.die(SOON if gone else AT_ONCE)
        self._task.kill()
        self.world.after(seconds, self.boot)

    def cut_worker(self, notice: float) -> None:
        """The worker's connection breaks."""
        process = self.process
        if process is not None and process.link is not None:
            self.world.say(f"the worker of {self.name} loses its connection")
            process.link._transport.cut(notice)

    def cut_supervisor(self, notice: float) -> None:
        """The supervisor's connection breaks."""
        if self._service is not None and self._service.uplink is not None:
            self.world.say(f"the supervisor of {self.name} loses its connection")
            self._service.uplink._transport.cut(notice)

    def stall(self, seconds: float) -> None:
        """The worker's compute thread stands still."""
        process = self.process
        if process is not None:
            self.world.say(f"the worker of {self.name} stands still for {seconds:.1f} s")
            process.task.stalled_until = self.world.now + seconds


def silence() -> None:
    """Logs of thousands of runs help nobody."""
    logging.getLogger("asteroid").setLevel(logging.CRITICAL)
    logging.getLogger("asteroid_agent").setLevel(logging.CRITICAL)
    logging.getLogger("asteroid_coordinator").setLevel(logging.CRITICAL)
