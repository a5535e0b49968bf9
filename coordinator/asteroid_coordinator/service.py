"""The coordinator: one MQTT connection, the registry of devices, requests from the command line, a thread a job.

One thread owns the registry and the table of jobs; MQTT only puts into its queue. A job's own thread does what is slow.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from asteroid_coordinator.cluster.commands import Commands
from asteroid_coordinator.cluster.registry import Change, Found, Leaving, Lost, Registry
from asteroid_coordinator.inspecting import Inspector
from asteroid_coordinator.job.state import Broken, DeviceBack, DeviceGone, DeviceLeaves, Mode, WorkerMoved
from asteroid_coordinator.profiling import Profiler
from asteroid_coordinator.runner import JobRunner, Shell
from asteroid_coordinator.settings import Settings
from asteroid_coordinator.store import Store
from asteroid_coordinator.takeover import recall
from asteroid_core.errors import AsteroidError, BrokerError, InputError, WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.base import Connected, Disconnected, Message, Refused, Subscription, Will
from asteroid_core.link.control import ControlLink, open_control
from asteroid_core.link.tensors import TensorLink, open_tensors
from asteroid_core.spec import JobSpec
from asteroid_core.wire import topics
from asteroid_core.wire.messages import (
    AgentInfo,
    AgentStatus,
    Answer,
    Beat,
    Command,
    CoordinatorStatus,
    DataInfo,
    ProfilePart,
    Reply,
    Report,
    Request,
    Telemetry,
    WorkerStatus,
    decode,
    encode,
)

log = logging.getLogger(__name__)

STORY, STORY_BYTES = 100, 10_000
"""Lines of a job's story in an answer, and their length: an answer is one control message."""
RECOVERIES = 5
"""Recoveries that such an answer has in any case."""

_AGENT_TOPICS = (
    "agent_status",
    "agent_info",
    "agent_telemetry",
    "agent_reply",
    "agent_worker",
    "agent_report",
    "agent_beat",
    "agent_profile",
    "agent_data",
)


class Coordinator:
    """Serves requests over MQTT until it is stopped.

    Args:
        settings: broker and state directory.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.session = secrets.token_hex(8)
        self.registry = Registry()
        self._store = Store(settings.state_dir)
        self._control: ControlLink | None = None
        self._connection = ""
        self._jobs: dict[str, JobRunner] = {}
        self._workers: dict[str, dict[str, WorkerStatus]] = {}
        """last word of each device's worker, by job"""
        self._listeners: list[Profiler | Inspector] = []
        # Jobs command from their own threads, answers come in the service's.
        self._commands = Commands()
        self._commands_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._online = threading.Event()
        self._failure: AsteroidError | None = None
        self._takes_over = False

    # Life

    def start(self, timeout: float = 10.0, take_over: bool = False) -> None:
        """Connect and serve; returns once the coordinator is online.

        Args:
            timeout: seconds until it must be online.
            take_over: go on with the jobs that another coordinator, which has died, left running.

        Raises:
            BrokerError: the broker cannot be reached or refuses.
            InputError: another coordinator serves this broker.
        """
        self._takes_over = take_over
        self._control = open_control(self.settings.link_settings(keepalive=5), "asteroid-coordinator", self._will)
        self._thread = threading.Thread(target=self._serve, name="coordinator", daemon=True)
        self._thread.start()
        if not self._online.wait(timeout):
            failure = self._failure or InputError(
                f"The coordinator did not show up on the broker at {self.settings.address} within {timeout:.0f} s.",
                "Run `asteroid doctor`; the coordinator needs its own MQTT user and the rules of broker_config/acl.",
            )
            self.stop()
            raise failure
        if self._failure is not None:
            self.stop()
            raise self._failure

    def stop(self) -> None:
        """Say offline and disconnect; jobs stay resumable."""
        if self._control is not None and self._online.is_set() and self._failure is None:
            for runner in self._jobs.values():
                if not runner.ended:
                    runner.stop()
            for runner in self._jobs.values():
                runner.wait(10.0)
            self._say("offline")
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5.0)
        if self._control is not None:
            self._control.close()
        self._store.close()

    def _will(self, connection: str) -> Will:
        status = CoordinatorStatus(state="lost", connection=connection, session=self.session)
        return Will(topics.build("coordinator_status"), encode(status))

    def _say(self, state: str) -> None:
        status = CoordinatorStatus.model_validate(
            {"state": state, "connection": self._connection, "session": self.session}
        )
        assert self._control is not None
        self._control.publish(topics.build("coordinator_status"), encode(status), retain=True, remember=False)

    # The owner's thread

    def _serve(self) -> None:
        assert self._control is not None
        while not self._stopping.is_set():
            self._repeat_commands()
            try:
                event = self._control.events.get(timeout=0.5)
            except queue.Empty:
                continue
            match event:
                case Connected():
                    self._connected(event)
                    self._link(up=True)
                case Disconnected():
                    log.warning("broker lost: %s", event.reason)
                    self._link(up=False)
                case Refused():
                    self._refused(event)
                case Message():
                    try:
                        self._incoming(event)
                    except WireError as error:
                        log.warning("%s: %s", event.topic, error)

    def _repeat_commands(self) -> None:
        with self._commands_lock:
            again = self._commands.due(time.monotonic())
        for device, command in again:
            log.info("%s has not answered %s %s, saying it again", device, command.verb, command.id)
            self._say_command(device, command)

    def _refused(self, event: Refused) -> None:
        log.error("the broker refuses %s: %s", event.topic, event.reason)
        error = BrokerError(
            f"The broker at {self.settings.address} refuses {event.topic}: {event.reason}",
            "The coordinator needs its own MQTT user and the access rules of broker_config/acl.",
        )
        if not self._online.is_set():
            self._failure = error
            self._online.set()
        for runner in self._jobs.values():
            if not runner.ended:
                runner.inbox.put(Broken(error.what, error.remedy, error.exit_code))

    def _connected(self, event: Connected) -> None:
        assert self._control is not None
        self._connection = event.connection
        if not self._online.is_set():
            filters = (*_AGENT_TOPICS, "coordinator_request", "coordinator_status")
            self._control.subscribe(*(Subscription(topics.pattern(key)) for key in filters))
        self._say("online")

    def _link(self, *, up: bool) -> None:
        for runner in self._jobs.values():
            runner.watch.link(up=up)

    def _incoming(self, event: Message) -> None:
        found = topics.parse(event.topic)
        if found is None or not event.payload:
            return
        row, fields = found
        handler = getattr(self, f"_on_{row.key}", None)
        if handler is not None:
            handler(fields, event.payload)

    def _on_coordinator_status(self, _: Mapping[str, str], payload: bytes) -> None:
        status = decode(CoordinatorStatus, payload)
        if status.session == self.session:
            if status.state == "lost" and status.connection != self._connection:
                self._say("online")  # the late will of an older connection of ours
            elif status.state == "online":
                self._online.set()  # seen by ourselves, so everybody can see it
                self._take_over()
            return
        if status.state == "online":
            log.warning("another coordinator (session %s) serves this broker", status.session)

    def _take_over(self) -> None:
        wanted, self._takes_over = self._takes_over, False
        for name in self._store.jobs() if wanted else ():
            if recall(self._store.get_run(name)) is not None:
                log.warning("job %s was left running and is taken over", name)
                self._resume(name)

    def _on_agent_status(self, fields: Mapping[str, str], payload: bytes) -> None:
        message = _own(decode(AgentStatus, payload), fields)
        self._changed(self.registry.status(message), message.connection if message.state == "lost" else "")

    def _on_agent_info(self, fields: Mapping[str, str], payload: bytes) -> None:
        self._changed(self.registry.info(_own(decode(AgentInfo, payload), fields)))

    def _on_agent_telemetry(self, fields: Mapping[str, str], payload: bytes) -> None:
        self.registry.telemetry(_own(decode(Telemetry, payload), fields))

    def _on_agent_reply(self, fields: Mapping[str, str], payload: bytes) -> None:
        reply = _own(decode(Reply, payload), fields)
        with self._commands_lock:
            self._commands.answered(reply.agent, reply.id)
        if reply.ok:
            return
        log.warning("%s refuses: %s", reply.agent, reply.reason)
        for runner in self._jobs.values():
            if reply.id.startswith(f"{runner.spec.name}-{runner.job.generation}-"):
                runner.inbox.put(DeviceGone(reply.agent, reply.reason))
        for listener in self._listeners:
            listener.refused(reply.id, reply.agent, reply.reason)

    def _on_agent_worker(self, fields: Mapping[str, str], payload: bytes) -> None:
        status = _own(decode(WorkerStatus, payload), fields)
        self._workers.setdefault(fields["job"], {})[status.agent] = status
        if status.session == self.session:
            for listener in self._listeners:
                listener.worker(fields["job"], status)
        # One of an earlier run says nothing; its supervisor replaces it when the job needs the device.
        if (runner := self._jobs.get(fields["job"])) and status.session == runner.run_id:
            where = (status.agent, status.state, status.generation, status.reason, status.connection)
            runner.inbox.put(WorkerMoved(*where, status.loading))

    def _on_agent_report(self, fields: Mapping[str, str], payload: bytes) -> None:
        report = _own(decode(Report, payload), fields)
        if runner := self._jobs.get(fields["job"]):
            runner.inbox.put(report)

    def _on_agent_beat(self, fields: Mapping[str, str], payload: bytes) -> None:
        beat = _own(decode(Beat, payload), fields)
        if runner := self._jobs.get(fields["job"]):
            runner.watch.beat(beat)

    def _on_agent_data(self, fields: Mapping[str, str], payload: bytes) -> None:
        info = _own(decode(DataInfo, payload), fields)
        for listener in self._listeners:
            listener.data(info)

    def _on_agent_profile(self, fields: Mapping[str, str], payload: bytes) -> None:
        part = _own(decode(ProfilePart, payload), fields)
        for listener in self._listeners:
            listener.part(part)

    def _changed(self, change: Change | None, will: str = "") -> None:
        if change is None:
            return
        log.info("%s", change)
        if isinstance(change, Lost):
            with self._commands_lock:
                self._commands.lost(change.device)
        for runner in self._jobs.values():
            runner.inbox.put(_event(change, will))
        for listener in self._listeners:
            if not isinstance(change, Found):
                listener.lost(change.device, change.reason)

    # Requests

    def _on_coordinator_request(self, fields: Mapping[str, str], payload: bytes) -> None:
        client = fields["client"]
        try:
            request = decode(Request, payload)
        except WireError as error:
            log.warning("request of %s: %s", client, error)
            return
        try:
            answer = self._answer(request)
        except AsteroidError as error:
            answer = Answer(
                id=request.id,
                ok=False,
                exit_code=error.exit_code,
                what=error.what,
                remedy=error.remedy,
                job=request.job,
            )
        self._publish(topics.build("coordinator_answer", client=client), encode(answer), False)

    def _answer(self, request: Request) -> Answer:
        match request.verb:
            case "submit" | "plan" | "profile":
                if request.spec is None:
                    raise InputError("The request carries no job.", "Give a job file.")
                mode: Mode = "train" if request.verb == "submit" else request.verb
                return Answer(id=request.id, ok=True, job=self._submit(request.spec, mode))
            case "stop":
                self._running(request.job).stop()
                return Answer(id=request.id, ok=True, job=request.job)
            case "resume":
                return Answer(id=request.id, ok=True, job=self._resume(request.job))
            case "jobs":
                return Answer(id=request.id, ok=True, data={"jobs": self._store.states()})
            case "status":
                return Answer(id=request.id, ok=True, job=request.job, data=self._status(request.job))
            case "export":
                return self._export(request)
            case "drain":
                return self._drain(request)
            case "shutdown":
                self._stopping.set()
                return Answer(id=request.id, ok=True)

    def _status(self, name: str) -> dict[str, Any]:
        """Where a job is, and the last lines of its story, as many as one message holds."""
        whole = [{"job": name, "seq": e.seq, **e.body} for e in self._store.events(name)]
        recoveries = [e for e in whole if e["kind"] == "recovered"][-RECOVERIES:]
        story = [*(e for e in recoveries if e not in whole[-STORY:]), *whole[-STORY:]]
        while len(json.dumps(story)) > STORY_BYTES:  # the oldest goes first, what tells of a recovery last
            story.remove(next((e for e in story if e not in recoveries), story[0]))
        return {**self._store.state(name), "events": story}

    def _running(self, name: str) -> JobRunner:
        runner = self._jobs.get(name)
        if runner is None or runner.ended:
            raise InputError(f"No job {name!r} is running.", "asteroid jobs lists them.")
        return runner

    def _submit(self, spec: JobSpec, mode: Mode) -> str:
        name = self._store.free_name(spec.name) if mode == "train" else spec.name
        if name in self._jobs and not self._jobs[name].ended:
            raise InputError(f"The job {name!r} is still running.", f"Wait, or: asteroid stop {name}")
        spec = spec.model_copy(update={"name": name})
        if mode == "train":
            self._store.create_job(name, spec.model_dump_json())
        self._begin(JobRunner(spec, mode, self._shell()))
        return name

    def _resume(self, name: str) -> str:
        if name in self._jobs and not self._jobs[name].ended:
            raise InputError(f"The job {name!r} is running already.", f"asteroid status {name}")
        spec = JobSpec.model_validate_json(self._store.spec(name))
        state = self._store.state(name)
        if state.get("phase") == "done":
            raise InputError(f"The job {name!r} is done.", f"asteroid export {name} writes its model.")
        record = recall(self._store.get_run(name))
        generation = int(state.get("generation", 0))
        shell = self._shell()
        self._begin(JobRunner(spec, "train", shell, generation=generation, resume=True, record=record))
        return name

    def _begin(self, runner: JobRunner) -> None:
        self._jobs[runner.spec.name] = runner
        runner.start()

    def _drain(self, request: Request) -> Answer:
        """Let a device leave; its jobs do without it first."""
        device = self.registry.devices.get(request.device)
        if device is None or not device.present:
            state = "unknown" if device is None or device.status is None else device.status.state
            raise InputError(
                f"The device {request.device!r} is {state}.", "asteroid devices lists those that are there."
            )
        command = Command(id=f"drain-{request.id}", verb="leave", session=self.session)
        self._command(request.device, command)
        jobs = [n for n, r in self._jobs.items() if not r.ended and r.job.plan and request.device in r.job.plan.devices]
        return Answer(id=request.id, ok=True, data={"device": request.device, "jobs": jobs})

    def _export(self, request: Request) -> Answer:
        path = self.settings.state_dir / "jobs" / request.job / "model.safetensors"
        if not path.is_file():
            self._store.spec(request.job)
            raise InputError(f"The job {request.job!r} has no model file yet.", f"asteroid status {request.job}")
        return Answer(id=request.id, ok=True, job=request.job, data={"path": str(path)})

    # What jobs are given

    def _shell(self) -> Shell:
        return Shell(
            session=self.session,
            store=self._store,
            directory=self.settings.state_dir,
            registry=self.registry,
            publish=self._publish,
            command=self._command,
            workers=lambda job: dict(self._workers.get(job, {})),
            open_link=self._open_link,
            profiler=self._profiler,
            inspector=self._inspector,
        )

    def _publish(self, topic: str, payload: bytes, retain: bool) -> None:
        assert self._control is not None
        self._control.publish(topic, payload, retain=retain)

    def _command(self, device: str, command: Command) -> None:
        with self._commands_lock:
            self._commands.sent(device, command, time.monotonic())
        self._say_command(device, command)

    def _say_command(self, device: str, command: Command) -> None:
        self._publish(topics.build("agent_command", agent=device), encode(command), False)

    def _open_link(self, job: str) -> TensorLink:
        return open_tensors(self.settings.link_settings(), job, COORDINATOR)

    def _profiler(self) -> Profiler:
        profiler = Profiler(
            self.session, self.registry, self._store, self._command, self._open_link, self._forget, self.settings
        )
        self._listeners.append(profiler)
        return profiler

    def _inspector(self) -> Inspector:
        inspector = Inspector(self.session, self.registry, self._command, self._forget)
        self._listeners.append(inspector)
        return inspector

    def _forget(self, listener: Profiler | Inspector) -> None:
        self._listeners.remove(listener)


def _event(change: Change, will: str) -> DeviceGone | DeviceLeaves | DeviceBack:
    match change:
        case Lost():
            return DeviceGone(change.device, change.reason, connection=will)
        case Leaving():
            return DeviceLeaves(change.device, change.reason)
        case Found():
            return DeviceBack(change.device)


def _own(message: Any, fields: Mapping[str, str]) -> Any:
    """Return the message if it speaks of the device on whose topic it came.

    Raises:
        WireError: somebody writes in another device's name.
    """
    if message.agent != fields["agent"]:
        raise WireError(f"a message about {message.agent} came on a topic of {fields['agent']}.")
    return message
