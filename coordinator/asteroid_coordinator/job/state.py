"""What a job is: frozen state, the events that can happen to it, the effects that it asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from asteroid_core.plan import Plan
from asteroid_core.wire.messages import JobPhase

Mode = Literal["train", "plan", "profile"]

ACTIVE: frozenset[JobPhase] = frozenset({"profiling", "planning", "preparing", "running", "finishing"})
ENDED: frozenset[JobPhase] = frozenset({"done", "failed", "stopped"})


@dataclass(frozen=True)
class Job:
    """Where a job is.

    Attributes:
        name: its name.
        mode: train it, or only plan or profile.
        phase: see ``decide`` for the moves.
        generation: of the plan in force.
        rounds: how many there will be.
        completed: rounds that every worker has stepped.
        durable: rounds that a checkpoint holds.
        start_round: where the present generation began.
        plan: the plan in force.
        ready: workers that hold their stage of this generation.
        reported: for each round not yet completed, the workers that have reported it.
        finished: workers that have nothing left to do.
        connections: the connection that each device's worker last spoke on; the will of another one says nothing.
        excluded: devices left out until they are born again, with the reason.
    """

    name: str
    mode: Mode = "train"
    phase: JobPhase = "new"
    generation: int = 0
    rounds: int = 0
    completed: int = 0
    durable: int = 0
    start_round: int = 0
    plan: Plan | None = None
    ready: frozenset[str] = frozenset()
    reported: tuple[tuple[int, frozenset[str]], ...] = ()
    finished: frozenset[str] = frozenset()
    connections: tuple[tuple[str, str], ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    remedy: str = ""
    exit_code: int = 0


# Events


@dataclass(frozen=True)
class Submitted:
    """A person asked for it (or asked to resume it, from ``durable`` rounds and ``generation``)."""

    mode: Mode
    durable: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Imported:
    """The model became layers, the data became rounds."""

    rounds: int


@dataclass(frozen=True)
class Profiled:
    """Every device that takes part has a profile; ``failed`` names the ones that could not."""

    devices: tuple[str, ...]
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Planned:
    """The planner found a plan of the asked generation."""

    plan: Plan


@dataclass(frozen=True)
class WorkerMoved:
    """A worker said where it is, or its will or its supervisor did."""

    agent: str
    state: str
    generation: int
    reason: str = ""
    connection: str = ""


@dataclass(frozen=True)
class RoundDone:
    """A worker stepped a round."""

    agent: str
    generation: int
    round: int


@dataclass(frozen=True)
class WorkerFinished:
    """A worker has nothing left to do."""

    agent: str
    generation: int


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint of this many rounds is on disk."""

    rounds: int


@dataclass(frozen=True)
class DeviceGone:
    """A device is lost or leaves."""

    device: str
    reason: str


@dataclass(frozen=True)
class DeviceBack:
    """A device was born again."""

    device: str


@dataclass(frozen=True)
class Late:
    """Workers that did not get ready in time."""

    generation: int


@dataclass(frozen=True)
class StopAsked:
    """A person asked to stop."""


@dataclass(frozen=True)
class Broken:
    """Something that ends the job, as a sentence and a remedy."""

    what: str
    remedy: str = ""
    exit_code: int = 1


JobEvent = (
    Submitted
    | Imported
    | Profiled
    | Planned
    | WorkerMoved
    | RoundDone
    | WorkerFinished
    | Checkpointed
    | DeviceGone
    | DeviceBack
    | Late
    | StopAsked
    | Broken
)

# Effects


@dataclass(frozen=True)
class Import:
    """Export the model, cut it, open the data."""


@dataclass(frozen=True)
class Profile:
    """Measure the layers on every device that has no profile yet."""


@dataclass(frozen=True)
class MakePlan:
    """Plan generation ``generation`` over the devices present, without the excluded ones."""

    generation: int
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Prepare:
    """Publish plan and assignments; ask the supervisors for workers; be back within the deadline."""

    plan: Plan
    start_round: int


@dataclass(frozen=True)
class SendProgram:
    """Send a worker its program and state."""

    agent: str


@dataclass(frozen=True)
class Feed:
    """Feed samples from this round on."""

    start_round: int


@dataclass(frozen=True)
class StopFeed:
    """Stop feeding."""


@dataclass(frozen=True)
class Release:
    """End the workers."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class Export:
    """Write the model file from the last checkpoint."""


@dataclass(frozen=True)
class Say:
    """A line of the job's story."""

    kind: str
    text: str
    data: dict[str, str | int | float] = field(default_factory=dict)


Effect = Import | Profile | MakePlan | Prepare | SendProgram | Feed | StopFeed | Release | Export | Say
