"""Talks to a coordinator over MQTT as the command line does: requests, answers, messages of jobs and devices.

One thread owns a ``Client``. The link's callback only puts what arrived into a queue; everything else happens in the
thread that calls ``request``, ``follow`` or ``collect``.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from asteroid_coordinator.settings import Settings
from asteroid_core.errors import AsteroidError, BrokerError, InputError, WireError
from asteroid_core.link.base import Message as Incoming
from asteroid_core.link.base import Refused, Subscription
from asteroid_core.link.control import ControlLink, open_control
from asteroid_core.spec import JobSpec
from asteroid_core.wire import messages
from asteroid_core.wire.messages import Answer, CoordinatorStatus, Message, Request, decode, encode
from asteroid_core.wire.topics import BY_KEY, build, parse, pattern

JOB_TOPICS = ("job_state", "job_plan", "job_metrics", "job_events")
DEVICE_TOPICS = ("agent_status", "agent_info", "agent_telemetry", "agent_worker")


OpenLink = Callable[[Settings, str], ControlLink]
"""Connects under the client's name; BrokerError if the broker cannot be reached or refuses."""


@dataclass(frozen=True)
class Heard:
    """A message that has been read.

    Attributes:
        key: row of the topic table.
        fields: names in the topic, for example ``job`` or ``agent``.
        message: the payload.
        retained: whether it was kept by the broker from before we asked.
    """

    key: str
    fields: dict[str, str]
    message: Message
    retained: bool


class Client:
    """One connection of an operator.

    Args:
        settings: broker and login.
        open_link: another way to connect, for tests.
    """

    def __init__(self, settings: Settings, open_link: OpenLink | None = None) -> None:
        self.settings = settings
        self.name = f"cli-{secrets.token_hex(6)}"
        self.dropped = 0
        """messages that could not be read"""
        self.refused: list[Refused] = []
        """what the broker's access rules forbade"""
        self._open = open_link or _open_control
        self._control: ControlLink | None = None
        self._kept: deque[Heard] = deque()

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Reach the broker and listen for answers.

        Raises:
            BrokerError: it cannot be reached or refuses the login.
        """
        self._control = self._open(self.settings, self.name)
        self._control.subscribe(
            Subscription(build("coordinator_answer", client=self.name)), Subscription(build("coordinator_status"))
        )

    def close(self) -> None:
        """Leave the broker; twice is once."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def subscribe(self, *keys: str, **fields: str) -> None:
        """Listen to rows of the topic table; fields that are not given may be anything."""
        self.link.subscribe(*(Subscription(pattern(key, **fields), BY_KEY[key].qos) for key in keys))

    def find_coordinator(self, timeout: float = 1.0) -> CoordinatorStatus | None:
        """Wait for a coordinator that is online; None if none shows up in time."""
        last: CoordinatorStatus | None = None
        for heard in self.follow(timeout):
            if isinstance(heard.message, CoordinatorStatus):
                last = heard.message
                if last.state == "online":
                    return last
                # A coordinator that comes back replaces its last will at once; the other one is the retained truth.
                if heard.retained:
                    return None
            else:
                self._kept.append(heard)
        return None

    def request(
        self,
        verb: str,
        *,
        job: str = "",
        device: str = "",
        spec: JobSpec | None = None,
        options: dict[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """Ask the coordinator and wait for its answer; what arrives meanwhile is kept for ``follow``.

        Raises:
            AsteroidError: what the coordinator answered, with its remedy and exit code, or that it did not answer.
        """
        identity = secrets.token_hex(8)
        fields = {"id": identity, "verb": verb, "job": job, "device": device, "spec": spec, "options": options or {}}
        try:
            payload = encode(Request.model_validate(fields))
        except ValueError:
            raise InputError(
                "The job file is too long for one message (16 kB).", "Shorten its options; large data belongs in files."
            ) from None
        topic = build("coordinator_request", client=self.name)
        self.link.publish(topic, payload)
        kept: list[Heard] = []
        try:
            for heard in self.follow(timeout):
                message = heard.message
                if isinstance(message, Answer):
                    if message.id == identity:
                        return _checked(message)
                elif isinstance(message, CoordinatorStatus):
                    if message.state != "online" and not heard.retained:
                        raise AsteroidError(
                            "The coordinator went away before it answered.", "Start it again, then repeat the command."
                        )
                else:
                    kept.append(heard)
        finally:
            self._kept.extend(kept)
        raise AsteroidError(
            f"The coordinator did not answer {verb!r} within {timeout:.0f} s.",
            "Run `asteroid doctor`; a user who may not write to coordinator/request/# is the usual reason.",
        )

    def watch(self, job: str) -> None:
        """Subscribe to all that is told about a job; read it with ``follow``."""
        self.subscribe(*JOB_TOPICS, job=job)

    def follow(self, timeout: float) -> Iterator[Heard]:
        """Yield messages as they arrive, until ``timeout`` seconds from now have passed."""
        deadline = time.monotonic() + timeout
        while True:
            if self._kept:
                yield self._kept.popleft()
                continue
            try:
                event = self.link.events.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                return
            if isinstance(event, Incoming):
                heard = self._read(event.topic, event.payload, event.retain)
                if heard is not None:
                    yield heard
            elif isinstance(event, Refused):
                self._refuse(event)

    @property
    def link(self) -> ControlLink:
        """The connection."""
        if self._control is None:
            raise BrokerError("Not connected to the broker.", "Call connect() first.")
        return self._control

    def _refuse(self, event: Refused) -> None:
        self.refused.append(event)
        if event.topic == build("coordinator_request", client=self.name):
            raise BrokerError(
                event.reason,
                f"Give the user the right to write to {pattern('coordinator_request')} in the broker's rules.",
            )

    def _read(self, topic: str, payload: bytes, retained: bool) -> Heard | None:
        """Decode a message; foreign topics, deletions and what cannot be read are counted or ignored."""
        found = parse(topic)
        if found is None or not payload:
            return None
        row, fields = found
        model = getattr(messages, row.payload, None)
        if not (isinstance(model, type) and issubclass(model, Message)):
            return None
        try:
            return Heard(row.key, fields, decode(model, payload), retained)
        except WireError:
            self.dropped += 1
            return None


def _open_control(settings: Settings, name: str) -> ControlLink:
    return open_control(settings.link_settings(), client_id=f"asteroid-{name}")


class CoordinatorError(AsteroidError):
    """What a coordinator answered, with its exit code."""

    def __init__(self, what: str, remedy: str, exit_code: int) -> None:
        super().__init__(what, remedy)
        self.exit_code = exit_code


def _checked(answer: Answer) -> Answer:
    if answer.ok:
        return answer
    raise CoordinatorError(
        answer.what or "The coordinator refused the request.",
        answer.remedy,
        answer.exit_code or AsteroidError.exit_code,
    )
