"""What a supervisor knows, what can happen to it, and what it may do: frozen values and one table. No I/O.

Phases (the words of the retained ``status`` topic)::

    init ---> ready <---> training            ready: nothing trains (a measurement may run)
      |         |            |
      |         +-> draining <+               asked to leave; the worker is being ended
      v                |
    offline <----------+                      said offline, about to exit
    lost                                      from anywhere: another process took our name over, or (said by the
                                              broker, in our last will) we are gone

``TABLE`` answers every pair of phase and event in one of three ways: it *moves*, it is *late* and ignored for the
reason written there, or it is a *bug*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from asteroid_agent.supervisor.events import (
    EVENTS,
    ChildExited,
    ChildStarted,
    Connected,
    Disconnected,
    Launch,
    Message,
    Signalled,
    TakenOver,
    TimerFired,
)
from asteroid_core.wire.messages import AgentInfo, CoordinatorStatus, Reply, WorkerState, WorkerStatus

ANSWERS_KEPT = 64
"""Answers kept for commands that come twice (QoS 1)."""
WORDS_KEPT = 32
"""Ended jobs whose last word stays retained on the broker; older ones are deleted there."""
CONNECTIONS_KEPT = 16
"""Ids of our own connections, to know our own echo."""
FOREIGN_BIRTHS = 3
"""Births of strangers under our name before we give in. One may be our own from before a restart, in a kept session."""


class Phase(str, Enum):
    """See the module's header."""

    INIT = "init"
    READY = "ready"
    TRAINING = "training"
    DRAINING = "draining"
    OFFLINE = "offline"
    LOST = "lost"


# Data


@dataclass(frozen=True)
class Worker:
    """The worker process of this device.

    Attributes:
        number: counts the processes of this supervisor; its events carry it.
        launch: why it was started.
        pid: known once it runs.
        heard: its last own word on its topic.
        stopping: why we are ending it; empty while it may run.
        stage: ``2/4``, from its assignment.
        round: last round that it reported.
    """

    number: int
    launch: Launch
    pid: int | None = None
    heard: WorkerStatus | None = None
    stopping: str = ""
    stage: str = ""
    round: int | None = None

    @property
    def ending(self) -> bool:
        """Whether it will be gone soon: asked to, or it said so itself."""
        return bool(self.stopping) or (self.heard is not None and self.heard.state == "failed")


@dataclass(frozen=True)
class Word:
    """The last word about a worker that is gone.

    Attributes:
        job: its job.
        state: ``exited`` or ``failed`` (``done`` if found on the broker).
        generation: of the worker.
        reason: a sentence.
        dead: connection id of the worker, empty if it never said one.
        session: the coordinator's start that asked for it.
        final: whether a late ``failed`` of the worker itself cannot tell more.
        said: whether it was published; a broker that kept our session has it then.
    """

    job: str
    state: WorkerState
    generation: int
    reason: str
    dead: str = ""
    session: str = ""
    final: bool = True
    said: bool = False


@dataclass(frozen=True)
class State:
    """Everything the supervisor knows.

    Attributes:
        agent: name of this device.
        info: what the owner lends.
        grace_s: seconds between asking a worker to end and killing it.
        leave_s: seconds that a job has to do without this device before its worker is asked to end.
        telemetry_s: seconds between two telemetry messages.
        phase: where we are.
        connection: id of the present connection, empty without one.
        mine: ids of our connections, newest last.
        foreign_births: births of others under our name.
        coordinator: its last birth or will.
        worker: the worker process, one at a time.
        waiting: the worker that is started when the present one has ended.
        words: last words about workers that are gone, oldest first.
        answered: answers to the last commands, oldest first.
        spawned: processes started so far.
        dropped: messages that could not be read.
        said: last status line for the service manager.
    """

    agent: str
    info: AgentInfo
    grace_s: float = 5.0
    leave_s: float = 30.0
    telemetry_s: float = 5.0
    phase: Phase = Phase.INIT
    connection: str = ""
    mine: tuple[str, ...] = ()
    foreign_births: int = 0
    coordinator: CoordinatorStatus | None = None
    worker: Worker | None = None
    waiting: Launch | None = None
    words: tuple[Word, ...] = ()
    answered: tuple[Reply, ...] = ()
    spawned: int = 0
    dropped: int = 0
    said: str = ""


# The table


class Moves(Enum):
    """The event is dealt with by ``decide``."""

    MOVES = "moves"


@dataclass(frozen=True)
class Late:
    """The event is ignored, for a reason."""

    reason: str


class Bug(Enum):
    """The event cannot happen in this phase."""

    BUG = "bug"


Answer = Moves | Late | Bug
MOVES, BUG = Moves.MOVES, Bug.BUG
_RUNNING: Mapping[type, Answer] = dict.fromkeys(EVENTS, MOVES)
_ENDING: Mapping[type, Answer] = {event: Late("the process is ending") for event in EVENTS}

TABLE: Mapping[Phase, Mapping[type, Answer]] = {
    Phase.INIT: {
        Connected: MOVES,
        Disconnected: Late("there was no connection to lose, and the link tries again by itself"),
        TakenOver: MOVES,
        Message: Late("a kept session may hand out messages before our birth is said"),
        ChildStarted: BUG,
        ChildExited: BUG,
        TimerFired: BUG,
        Signalled: MOVES,
    },
    Phase.READY: _RUNNING,
    Phase.TRAINING: _RUNNING,
    Phase.DRAINING: _RUNNING,
    Phase.OFFLINE: _ENDING,
    Phase.LOST: _ENDING,
}


class Impossible(Exception):
    """A bug: an event that cannot happen in this phase."""

    def __init__(self, phase: Phase, event: object) -> None:
        super().__init__(f"{event!r} cannot happen while {phase.value}")
