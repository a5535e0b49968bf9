"""What can happen to a supervisor (events), and what it may do about it (effects): frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from asteroid_agent.worker.config import Mode
from asteroid_core.spec import DataSpec


@dataclass(frozen=True)
class Launch:
    """A worker that is wanted."""

    job: str
    mode: Mode
    session: str
    generation: int = 0
    model: str = ""
    data: DataSpec | None = None
    dtype: str = ""
    seed: int = 0

    def describe(self) -> str:
        """What it does, for sentences."""
        if self.mode == "inspect":
            return f"looking at data {self.data.source if self.data else ''}"
        return f"training job {self.job}" if self.mode == "train" else f"measuring model {self.model}"


# Events


@dataclass(frozen=True)
class Connected:
    """The broker accepted us; ``connection`` is the id that this connection's will carries."""

    connection: str
    session: bool = False


@dataclass(frozen=True)
class Disconnected:
    """The connection is gone; the link tries again."""

    reason: str


@dataclass(frozen=True)
class TakenOver:
    """Another client took our client id: the link does not try again."""

    reason: str


@dataclass(frozen=True)
class Message:
    """A message came in."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True)
class ChildStarted:
    """The process of a worker runs."""

    number: int
    pid: int


Oom = Literal["no", "perhaps", "yes"]


@dataclass(frozen=True)
class ChildExited:
    """The process of a worker is gone.

    Attributes:
        number: which worker.
        code: exit code, None if a signal ended it or it never began.
        signal: name of the signal, for example ``SIGKILL``.
        oom: whether the kernel killed it for memory.
        error: why it could not be started.
    """

    number: int
    code: int | None = None
    signal: str = ""
    oom: Oom = "no"
    error: str = ""


class TimerKind(str, Enum):
    """What a timer is for."""

    TELEMETRY = "telemetry"
    LEAVE = "leave"
    """the coordinator had its time to do without this device"""
    KILL = "kill"
    """the worker had its time to end by itself"""
    GIVE_UP = "give-up"
    """not even SIGKILL ended the worker (it hangs in the kernel)"""


@dataclass(frozen=True)
class TimerFired:
    """A timer that ``Arm`` has set is due; ``number`` is the worker's."""

    kind: TimerKind
    number: int = 0


@dataclass(frozen=True)
class Signalled:
    """Somebody asks this process to end."""

    name: str


Event = Connected | Disconnected | TakenOver | Message | ChildStarted | ChildExited | TimerFired | Signalled
EVENTS: tuple[type, ...] = (
    Connected,
    Disconnected,
    TakenOver,
    Message,
    ChildStarted,
    ChildExited,
    TimerFired,
    Signalled,
)


# Effects


@dataclass(frozen=True)
class Publish:
    """Publish a message; an empty retained payload deletes what the broker keeps."""

    topic: str
    payload: bytes
    retain: bool = False
    qos: int = 1


@dataclass(frozen=True)
class Subscribe:
    """Subscribe to filters, again and again is harmless."""

    filters: tuple[str, ...]


@dataclass(frozen=True)
class Spawn:
    """Start a worker process; answered by ``ChildStarted`` or ``ChildExited``."""

    number: int
    launch: Launch


@dataclass(frozen=True)
class Kill:
    """End a worker process: politely, or with its whole process group at once."""

    number: int
    hard: bool


@dataclass(frozen=True)
class Arm:
    """Fire a timer after some seconds; the same kind and number again replaces it."""

    kind: TimerKind
    after: float
    number: int = 0


@dataclass(frozen=True)
class Measure:
    """Take telemetry and publish it."""


@dataclass(frozen=True)
class Notify:
    """Tell the service manager the status line, and the first time that we are ready."""

    text: str
    ready: bool = False
    stopping: bool = False


@dataclass(frozen=True)
class Log:
    """A line for the log."""

    level: Literal["debug", "info", "warning", "error"]
    text: str


@dataclass(frozen=True)
class Exit:
    """End this process; with a code other than 0, ``what`` and ``remedy`` say why."""

    code: int = 0
    what: str = ""
    remedy: str = ""


Effect = Publish | Subscribe | Spawn | Kill | Arm | Measure | Notify | Log | Exit
