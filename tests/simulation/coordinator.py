"""A coordinator's life: what ``service.Coordinator`` does with its connection, registry and commands, as a task."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from tests.simulation.broker import SimBroker, SimTransport
from tests.simulation.job import JOB, Disk, Runner, Setting
from tests.simulation.links import SimControlLink
from tests.simulation.watch import Watch
from tests.simulation.world import Inbox, World

from asteroid_coordinator.cluster.commands import Commands
from asteroid_coordinator.cluster.registry import Change, Leaving, Lost, Registry
from asteroid_coordinator.job.state import (
    ENDED,
    DeviceBack,
    DeviceGone,
    DeviceLeaves,
    Job,
    JobEvent,
    Submitted,
    WorkerMoved,
)
from asteroid_coordinator.takeover import recall
from asteroid_core.link.base import Connected, Message, Subscription, Will
from asteroid_core.wire import topics
from asteroid_core.wire.messages import (
    AgentInfo,
    AgentStatus,
    Command,
    CoordinatorStatus,
    Reply,
    Report,
    WorkerStatus,
    decode,
    encode,
)

_TOPICS = ("agent_status", "agent_info", "agent_reply", "agent_worker", "agent_report", "coordinator_status")


class Coordinator:
    """One life of it; ``die`` ends it.

    Args:
        world: time and chance.
        broker: where to connect.
        watch: looks at every step.
        setting: the job.
        disk: survives.
        kept: what the devices really keep, to compare with what the job believes.
        feeder: the class of feeders.
    """

    def __init__(
        self,
        world: World,
        broker: SimBroker,
        watch: Watch,
        setting: Setting,
        disk: Disk,
        kept: Callable[[Job], list[set[str]]],
        feeder: Any,
    ) -> None:
        self.world, self.broker, self.watch, self.setting, self.disk = world, broker, watch, setting, disk
        self.kept, self.feeder_class = kept, feeder
        self.session = f"{world.random.getrandbits(64):016x}"
        self.registry = Registry()
        self.workers: dict[str, WorkerStatus] = {}
        self.runner: Runner | None = None
        self._commands = Commands()
        self._connection = ""
        self._online = False
        self._events: Any = Inbox(world)
        self.links: list[Any] = []
        self.control = SimControlLink(world, SimTransport(broker, "asteroid-coordinator"), self._will, self._events)
        self.links.append(self.control)
        self.control.open()
        self._task = world.spawn("coordinator", self._serve)
        self._task.owner = self
        world.say("the coordinator starts")

    def _will(self, connection: str) -> Will:
        status = CoordinatorStatus(state="lost", connection=connection, session=self.session)
        return Will(topics.build("coordinator_status"), encode(status))

    def _say(self) -> None:
        status = CoordinatorStatus(state="online", connection=self._connection, session=self.session)
        self.control.publish(topics.build("coordinator_status"), encode(status), retain=True, remember=False)

    def die(self) -> None:
        """The process is killed; from the loop only."""
        self.world.say("the coordinator dies")
        for link in self.links:
            link.die(0.003)
        self._task.kill()
        if self.runner is not None:
            self.runner.die()

    # The service

    def _serve(self) -> None:
        while True:
            for device, command in self._commands.due(self.world.now):
                self.publish(topics.build("agent_command", agent=device), encode(command), False)
            try:
                event = self._events.get(timeout=0.5)
            except queue.Empty:
                continue
            if isinstance(event, Connected):
                self._connection = event.connection
                if not self._online:
                    self.control.subscribe(*(Subscription(topics.pattern(key)) for key in _TOPICS))
                self._say()
            elif isinstance(event, Message):
                self._incoming(event)

    def _incoming(self, event: Message) -> None:
        found = topics.parse(event.topic)
        if found is None or not event.payload:
            return
        match found[0].key:
            case "coordinator_status":
                status = decode(CoordinatorStatus, event.payload)
                if status.session == self.session:
                    self._online = True
                    if status.state == "lost" and status.connection != self._connection:
                        self._say()
            case "agent_status":
                self._changed(self.registry.status(decode(AgentStatus, event.payload)))
            case "agent_info":
                self._changed(self.registry.info(decode(AgentInfo, event.payload)))
            case "agent_reply":
                self._reply(decode(Reply, event.payload))
            case "agent_worker":
                moved = decode(WorkerStatus, event.payload)
                self.workers[moved.agent] = moved
                if self.runner is not None and moved.session == self.runner.run:
                    self._put(WorkerMoved(moved.agent, moved.state, moved.generation, moved.reason, moved.connection))
            case "agent_report":
                self._put(decode(Report, event.payload))

    def _put(self, item: JobEvent | Report) -> None:
        if self.runner is not None:
            self.runner.inbox.put(item)

    def _reply(self, reply: Reply) -> None:
        self._commands.answered(reply.agent, reply.id)
        if not reply.ok:
            self.world.say(f"{reply.agent} refuses: {reply.reason}")
            if self.runner is not None and reply.id.startswith(f"{JOB}-{self.runner.job.generation}-"):
                self._put(DeviceGone(reply.agent, reply.reason))

    def _changed(self, change: Change | None) -> None:
        if change is None:
            return
        if isinstance(change, Lost):
            self._commands.lost(change.device)
            self._put(DeviceGone(change.device, change.reason))
        elif isinstance(change, Leaving):
            self._put(DeviceLeaves(change.device, change.reason))
        else:
            self._put(DeviceBack(change.device))

    def publish(self, topic: str, payload: bytes, retain: bool) -> None:
        self.control.publish(topic, payload, retain=retain)

    def command(self, device: str, command: Command) -> None:
        self._commands.sent(device, command, self.world.now)
        self.publish(topics.build("agent_command", agent=device), encode(command), False)

    # A person

    def begin(self) -> None:
        """Submit the job, take it over from a coordinator that died, or resume it."""
        again = self.disk.begun
        self.disk.begun = True
        saved = self.disk.latest if again else 0
        first = Submitted("train", saved, self.disk.generation, heavy=self.setting.heavy)
        record = recall(self.disk.record) if again else None
        how = "taken over" if record is not None else "resumed" if again else "submitted"
        self.world.say(f"the job is {how} at round {saved}")
        self.runner = Runner(self, first, record)

    @property
    def idle(self) -> bool:
        """Whether no job runs."""
        return self.runner is None or self.runner.job.phase in ENDED
