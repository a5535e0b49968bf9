"""What a job is: frozen state, the events that can happen to it, the effects that it asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asteroid_core.held import Held, Source
from asteroid_core.plan import Plan
from asteroid_core.wire.messages import JobPhase, Loading

Mode = Literal["train", "plan", "profile"]

Way = Literal["full", "regroup", "replay"]
"""How a plan is made: from profiles alone, by new shares inside groups, or by moving boundaries of the last plan."""

ACTIVE: frozenset[JobPhase] = frozenset({"profiling", "planning", "preparing", "running", "halting", "finishing"})
ENDED: frozenset[JobPhase] = frozenset({"done", "failed", "stopped"})
TRAINING: frozenset[JobPhase] = frozenset({"preparing", "running", "halting"})
"""Phases in which workers of the plan are there."""

GONE = frozenset({"failed", "exited", "lost"})
"""States of a worker that is not there any more."""


@dataclass(frozen=True)
class Halted:
    """A worker has stopped and keeps its working state.

    Attributes:
        agent: its device.
        generation: in which it stopped.
        rounds: that it has stepped.
        voted: it holds the reduced gradients of the next one.
        scale: by which the gradients of its last step were multiplied (clipping); None: it has stepped none.
    """

    agent: str
    generation: int
    rounds: int
    voted: bool = False
    scale: float | None = None


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
        durable: rounds whose state any single loss leaves whole.
        durable_generation: generation whose snapshots (or checkpoint) made it so.
        saved: rounds that a checkpoint holds.
        abandoned: rounds of a checkpoint of this generation that could not be written.
        start_round: where the present generation began.
        plan: the plan in force, or (while planning) the last one.
        heavy: recover by full planning, all weights through the coordinator (the baseline).
        live: the workers hold the working state of the plan, not only snapshots.
        leaving: devices that shall not be in the next plan, but give what they have until then.
        proposal: a better plan, which is taken once the workers have halted.
        serving: devices outside the plan that give the others their state until all are ready.
        halted: what the workers said when they stopped for a change inside their group.
        held: which snapshots the devices keep.
        ready: workers that hold their stage of this generation.
        reported: for each worker that has reported in this generation, the rounds that it has stepped.
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
    durable_generation: int = 0
    saved: int = 0
    abandoned: int = 0
    start_round: int = 0
    plan: Plan | None = None
    heavy: bool = False
    live: bool = False
    leaving: tuple[tuple[str, str], ...] = ()
    proposal: Plan | None = None
    serving: frozenset[str] = frozenset()
    halted: tuple[Halted, ...] = ()
    held: frozenset[Held] = frozenset()
    ready: frozenset[str] = frozenset()
    reported: tuple[tuple[str, int], ...] = ()
    finished: frozenset[str] = frozenset()
    connections: tuple[tuple[str, str], ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    remedy: str = ""
    exit_code: int = 0


# Events


@dataclass(frozen=True)
class Submitted:
    """A person asked for it (or asked to resume it, from ``saved`` rounds and ``generation``)."""

    mode: Mode
    saved: int = 0
    generation: int = 0
    heavy: bool = False


@dataclass(frozen=True)
class TakenOver:
    """An earlier coordinator left it running; these workers still have what they had, and a checkpoint ``saved``."""

    job: Job
    alive: frozenset[str]
    saved: int


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
    """The planner found a plan of the asked generation; ``way`` says how."""

    plan: Plan
    way: Way = "full"


@dataclass(frozen=True)
class WorkerMoved:
    """A worker said where it is, or its will or its supervisor did."""

    agent: str
    state: str
    generation: int
    reason: str = ""
    connection: str = ""
    loading: Loading | None = None


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
class Kept:
    """A device keeps a snapshot, and says so in a generation."""

    held: Held
    generation: int


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint of this many rounds is on disk, of the state of this generation."""

    rounds: int
    generation: int = 0


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint could not be written; training goes on."""

    rounds: int


@dataclass(frozen=True)
class DeviceGone:
    """A device is lost or leaves.

    Attributes:
        device: which one.
        reason: a clause that goes on from "... is lost:".
        connection: of the supervisor whose last will says so; empty if it is anything else.
        source: which of the detector's sources says so, if it is the detector.
        worst_s: the longest that it can take that source after the failure.
    """

    device: str
    reason: str
    connection: str = ""
    source: str = ""
    worst_s: float = 0.0


@dataclass(frozen=True)
class Stuck:
    """No device is lost, but a round does not go on: the detector finds that all wait for each other."""

    generation: int
    reason: str
    worst_s: float = 0.0


@dataclass(frozen=True)
class DeviceLeaves:
    """A device is about to leave; it gives its state away first."""

    device: str
    reason: str


@dataclass(frozen=True)
class Proposed:
    """A plan that was made beside training, for the generation in force; ``why`` is a sentence for people."""

    plan: Plan
    generation: int
    why: str


@dataclass(frozen=True)
class DeviceBack:
    """A device was born again."""

    device: str


@dataclass(frozen=True)
class Late:
    """Workers that did not get ready, or did not halt, in time."""

    generation: int
    phase: JobPhase = "preparing"


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
    | TakenOver
    | Imported
    | Profiled
    | Planned
    | WorkerMoved
    | RoundDone
    | WorkerFinished
    | Halted
    | Kept
    | Checkpointed
    | CheckpointFailed
    | DeviceGone
    | DeviceLeaves
    | Proposed
    | Stuck
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
class Recall:
    """Export the model again and take the profiles that the store keeps; the job goes on meanwhile."""


@dataclass(frozen=True)
class Profile:
    """Measure the layers on every device that has no profile yet."""


@dataclass(frozen=True)
class MakePlan:
    """Plan generation ``generation`` over the devices present, without the excluded ones.

    Attributes:
        generation: of the plan.
        without: devices that are left out.
        way: how.
        old: the last plan, for the ways that change it.
    """

    generation: int
    without: frozenset[str] = frozenset()
    way: Way = "full"
    old: Plan | None = None


@dataclass(frozen=True)
class Consider:
    """Plan beside training, and say ``Proposed`` if the change pays back.

    Attributes:
        generation: in force.
        without: devices that are left out.
        old: the plan in force.
        why: it is considered, a sentence for people.
        must: a device leaves, so any plan will do: the least change is enough.
    """

    generation: int
    without: frozenset[str]
    old: Plan
    why: str
    must: bool = False


@dataclass(frozen=True)
class Prepare:
    """Publish plan and assignments; ask the supervisors for workers; be back within the deadline.

    Attributes:
        plan: the new one.
        start_round: where it begins.
        sources: for each device, where its state comes from; none for devices that go on with what they have.
        live: the devices go on with their working state.
        saved: the coordinator has the state of the start round.
        base: snapshots of these rounds stay until others are durable.
        scale: for the step that some devices have yet to take.
        moved: devices that give their working state away and take a new stage.
        serving: devices outside the plan that give their state.
    """

    plan: Plan
    start_round: int
    sources: tuple[tuple[str, tuple[Source, ...]], ...] = ()
    live: bool = False
    moved: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()
    saved: bool = True
    base: int = 0
    scale: float | None = None


@dataclass(frozen=True)
class Halt:
    """The workers are told to stop and say how far they are; be back within the deadline."""

    plan: Plan


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
    data: Mapping[str, Any] = field(default_factory=dict)


Effect = Import | Recall | Profile | MakePlan | Consider | Prepare | Halt | Feed | StopFeed | Release | Export | Say
