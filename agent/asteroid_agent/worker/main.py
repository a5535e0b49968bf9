"""Entry of the worker process: its configuration comes on stdin, and it ends when stdin does.

The supervisor holds the other end of the pipe, so a worker never outlives it.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping

import psutil
from pydantic import ValidationError

from asteroid_agent.logs import setup_logging
from asteroid_agent.worker.config import Mode, WorkerConfig
from asteroid_agent.worker.pulse import Heart, Name, Pulse
from asteroid_core.clock import MonotonicClock, ProcessClock
from asteroid_core.errors import AsteroidError, BrokerError
from asteroid_core.link.base import (
    WORKER_KEEPALIVE_S,
    Broker,
    Connected,
    Disconnected,
    Message,
    Refused,
    Subscription,
    Will,
)
from asteroid_core.link.tensors import TensorLink, open_tensors
from asteroid_core.wire import topics
from asteroid_core.wire.messages import (
    Beat,
    DataInfo,
    FieldInfo,
    Loading,
    ProfilePart,
    WorkerState,
    WorkerStatus,
    encode,
)

log = logging.getLogger("asteroid.worker")

PART_CHARS = 12_000
"""Profile text in one message, so that it stays below the limit of control messages."""


class Shell:
    """The worker's connection: its retained state, its will, its control messages."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._topic = topics.build("agent_worker", agent=config.agent, job=config.job)
        self._said: tuple[WorkerState, int, str, Loading | None] = ("starting", 0, "", None)
        self._connection = ""
        self.spoken = ""
        """The connection of the last status said."""
        self._stashed: list[tuple[str, bytes]] = []
        self.link: TensorLink = open_tensors(_broker(config), config.job, config.agent, will=self._will)
        self.link.subscribe(
            Subscription(topics.build("job_assignment", job=config.job, agent=config.agent)),
            Subscription(topics.build("job_state", job=config.job)),
            Subscription(topics.build("coordinator_status")),
        )

    def _will(self, connection: str) -> Will:
        return Will(self._topic, encode(self._status(connection, "lost", 0, "its connection broke")))

    def _status(
        self, connection: str, state: WorkerState, generation: int, reason: str, loading: Loading | None = None
    ) -> WorkerStatus:
        return WorkerStatus(
            agent=self._config.agent,
            job=self._config.job,
            state=state,
            connection=connection,
            generation=generation,
            session=self._config.session,
            reason=reason,
            loading=loading,
        )

    def tell(self, state: WorkerState, generation: int, reason: str, loading: Loading | None = None) -> None:
        """Publish the worker's retained state."""
        self._said = (state, generation, reason, loading)
        while not self._connection:
            self._stashed += self.messages(0.1)
        self.link.publish(self._topic, encode(self._status(self._connection, *self._said)), retain=True, remember=False)
        self.spoken = self._connection

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Publish a control message."""
        self.link.publish(topic, payload, retain=retain)

    def beat(self, message: Beat) -> None:
        """Publish a sign of life; one that is lost is followed by another one."""
        topic = topics.build("agent_beat", agent=self._config.agent, job=self._config.job)
        self.link.publish(topic, encode(message), qos=0)

    def messages(self, timeout: float) -> list[tuple[str, bytes]]:
        """Return the control messages that have come, waiting for the first one for ``timeout`` seconds."""
        out, self._stashed = self._stashed, []
        while True:
            try:
                event = self.link.events.get(timeout=timeout) if timeout and not out else self.link.events.get_nowait()
            except queue.Empty:
                return out
            match event:
                case Connected():
                    first, self._connection = not self._connection, event.connection
                    if not first:  # the old connection's will may have said lost
                        self.tell(*self._said)
                case Disconnected():
                    log.warning("broker lost: %s", event.reason)
                case Refused():
                    raise BrokerError(
                        f"The broker refuses {event.topic} for {self._config.agent}: {event.reason}",
                        "Give this device the access rules of broker_config/acl.",
                    )
                case Message():
                    out.append((event.topic, event.payload))


def _broker(config: WorkerConfig) -> Broker:
    mqtt = config.mqtt
    return Broker(
        mqtt.host,
        mqtt.port,
        mqtt.username,
        mqtt.password,
        ca_file=mqtt.ca_file,
        tls=mqtt.tls,
        keepalive=WORKER_KEEPALIVE_S,
    )


def _lifeline() -> None:
    """End the process when the supervisor's end of the pipe is closed."""
    while os.read(0, 4096):
        pass
    os._exit(3)


def _read_config() -> WorkerConfig:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = os.read(0, 1)  # byte by byte: the rest of the pipe belongs to the lifeline
        if not piece:
            break
        data += piece
    return WorkerConfig.model_validate_json(bytes(data))


def _resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def _train(config: WorkerConfig, shell: Shell) -> None:
    from asteroid_agent.worker.session import Session  # torch is loaded here, once the connection stands

    pulse, clock, link = Pulse(), MonotonicClock(), shell.link
    name = Name(config.agent, config.job)
    heart = Heart(name, pulse, lambda: link.chunks, lambda: shell.spoken, clock, shell.beat)
    heart.start()
    try:
        Session(config, link, shell, clock, _resident_mb, pulse).run()
    finally:
        heart.stop()


def _profile(config: WorkerConfig, shell: Shell) -> None:
    from asteroid_agent.worker.profile import profile_device

    shell.link.set_generation(1)
    shell.tell("loading", 1, "")
    text = profile_device(config, shell.link, shell, MonotonicClock(), ProcessClock(), _resident_mb).to_text()
    pieces = [text[i : i + PART_CHARS] for i in range(0, len(text), PART_CHARS)]
    for number, piece in enumerate(pieces):
        part = ProfilePart(agent=config.agent, model=config.model, part=number, parts=len(pieces), text=piece)
        shell.publish(topics.build("agent_profile", agent=config.agent, model=config.model), encode(part))
    shell.tell("done", 1, "")


def _inspect(config: WorkerConfig, shell: Shell) -> None:
    from asteroid_core.data.opening import open_source

    assert config.data is not None, "the supervisor refuses an inspection without data"
    shell.link.set_generation(1)
    shell.tell("loading", 1, "")
    source = open_source(config.data, seed=config.seed, dtype=config.dtype)
    info = DataInfo(
        agent=config.agent,
        job=config.job,
        samples=len(source),
        inputs=tuple(FieldInfo(dtype=f.dtype, shape=f.shape) for f in source.inputs),
        target=FieldInfo(dtype=source.target.dtype, shape=source.target.shape),
        classes=source.classes,
        vocabulary=source.vocabulary,
        text=source.describe(),
    )
    shell.publish(topics.build("agent_data", agent=config.agent, job=config.job), encode(info))
    shell.tell("done", 1, "")


_MODES: Mapping[Mode, Callable[[WorkerConfig, Shell], None]] = {
    "train": _train,
    "profile": _profile,
    "inspect": _inspect,
}


def main() -> int:
    """Run one worker; returns the exit code."""
    try:
        config = _read_config()
    except ValidationError as error:
        sys.stderr.write(
            f"asteroid-worker: it is started by asteroid-agent, not by hand: {error.errors()[0]['msg']}.\n"
        )
        return 2
    setup_logging(config.log_format)
    threading.Thread(target=_lifeline, name="lifeline", daemon=True).start()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(config.cores))))
    try:
        shell = Shell(config)
    except AsteroidError as error:
        log.error("%s", error)
        return error.exit_code
    try:
        _MODES[config.mode](config, shell)
    except AsteroidError as error:
        log.error("%s", error)
        shell.tell("failed", 0, str(error))
        shell.link.close()
        return error.exit_code
    except Exception as error:  # the coordinator must learn the reason before the process ends
        log.exception("the worker failed")
        shell.tell("failed", 0, f"{type(error).__name__}: {error}")
        shell.link.close()
        return 1
    shell.link.flush(10.0)
    shell.link.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # daemon threads of torch must not hold the exit
