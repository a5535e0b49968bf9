"""Every control message: frozen pydantic models with a schema version, JSON under 16 kB.

Unknown fields: kept out of what we publish (models forbid them when built), ignored when read from the wire, so that a
newer peer of the same protocol may add some. ``decode`` is the one place that says so.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, PlainSerializer, ValidationError

from asteroid_core import PROTOCOL, __version__
from asteroid_core.costs import Costs
from asteroid_core.errors import WireError
from asteroid_core.held import Source
from asteroid_core.plan import Frozen, Plan
from asteroid_core.spec import DataSpec, JobSpec, OptimizerSpec, TrainSpec

MAX_BYTES = 16 * 1024
"""Control payloads stay below this, so that every viewer shows them."""


Figure = Annotated[float, PlainSerializer(lambda value: float(f"{value:.5g}"), return_type=float, when_used="json")]
"""A measured number: five digits on the wire are what a person reads and more than it is exact to."""


class Message(Frozen):
    """Base of all control messages."""

    schema_version: int = Field(default=1, alias="schema")

    model_config = Frozen.model_config | {"populate_by_name": True, "serialize_by_alias": True}


AgentState = Literal["init", "ready", "training", "draining", "offline", "lost"]
WorkerState = Literal["starting", "loading", "ready", "running", "paused", "done", "failed", "exited", "lost"]


class AgentStatus(Message):
    """Birth and last will of a supervisor. A ``lost`` counts only if its connection id is that of the last birth."""

    agent: str
    state: AgentState
    connection: str
    reason: str = ""
    protocol: int = PROTOCOL


class Accelerator(Frozen):
    """A device that computes beside the processor."""

    kind: str
    name: str = ""
    memory_mb: int | None = None


class AgentInfo(Message):
    """What a device is and what its owner lends."""

    agent: str
    model: str | None = None
    architecture: str = ""
    cores: float
    memory_mb: int
    budget_mb: int
    scratch_mb: int = 0
    accelerators: tuple[Accelerator, ...] = ()
    backends: dict[str, str] = Field(default_factory=dict)
    asteroid: str = __version__
    protocol: int = PROTOCOL
    python: str = ""
    os: str = ""


class Telemetry(Message):
    """How a device feels; null where a probe does not exist or failed."""

    agent: str
    uptime_s: Figure | None = None
    cpu_percent: Figure | None = None
    load1: Figure | None = None
    memory_total_mb: Figure | None = None
    memory_available_mb: Figure | None = None
    swap_used_mb: Figure | None = None
    temperature_c: Figure | None = None
    throttled: bool | None = None
    power_w: Figure | None = None
    net_rx_bytes: Figure | None = None
    net_tx_bytes: Figure | None = None
    gpu_percent: Figure | None = None
    gpu_memory_used_mb: Figure | None = None


class Command(Message):
    """What the coordinator asks of a device.

    ``prepare`` starts (or keeps) a worker for a job, ``profile`` one that measures layers, ``inspect`` one that looks
    at a data set; ``stop`` ends the worker.
    """

    id: str
    verb: Literal["prepare", "profile", "inspect", "stop", "leave"]
    job: str = ""
    generation: int = 0
    model: str = ""
    session: str = ""
    """the coordinator's start; a command of an older one is refused"""
    run: str = ""
    """the run of the job, which outlives a coordinator; a worker of an older one is replaced"""
    data: DataSpec | None = None
    """what to inspect"""
    dtype: str = ""
    """of its floats"""
    seed: int = 0


class Reply(Message):
    """Answer to a command."""

    id: str
    agent: str
    ok: bool
    reason: str = ""


class Loading(Frozen):
    """What a worker did to be ready."""

    fetched_bytes: int = Field(default=0, ge=0)
    """state that came from others"""
    fetch_s: Figure = 0.0
    """from the first question for state to the last answer"""
    load_s: Figure = 0.0
    """the known-answer test, and state and program into the engine"""


class WorkerStatus(Message):
    """Birth and last will of a worker."""

    agent: str
    job: str
    state: WorkerState
    connection: str
    generation: int = 0
    session: str = ""
    """the run of the job (of a measurement: the coordinator's start) that asked for it"""
    reason: str = ""
    loading: Loading | None = None
    """of ``ready``"""


class Report(Message):
    """What a worker tells the coordinator while it trains."""

    agent: str
    job: str
    generation: int
    kind: Literal["round", "validation", "kept", "halted", "finished"]
    round: int
    """which one; of ``kept`` and ``halted``, how many have been stepped"""
    lo: int = 0
    """first layer of what is kept"""
    hi: int = 0
    """one past the last layer of what is kept"""
    taken: int | None = None
    """of ``kept``: generation in which it was taken, if not this one"""
    voted: bool = False
    """of ``halted``: holds the reduced gradients of the next round"""
    scale: float | None = None
    """of ``halted``: by which the gradients of its last step were multiplied"""
    loss: float | None = None
    """sum over this device's samples, already divided by the mini-batch's normaliser"""
    correct: float | None = None
    counted: float | None = None
    seconds: Figure = 0.0
    busy_s: Figure = 0.0
    wait_s: Figure = 0.0
    peak_alive: int = 0
    memory_mb: Figure | None = None
    reason: str = ""


class Beat(Message):
    """A sign of life of a worker that trains; ``detector`` judges by it."""

    agent: str
    job: str
    generation: int
    connection: str
    """that of the last ``WorkerStatus``"""
    count: int = Field(ge=0)
    """number of this beat in the life of the process"""
    progress: int = Field(ge=0)
    """instructions done and chunks of tensors received"""
    waiting: tuple[str, ...] = ()
    """whom the present instruction waits for"""
    late: bool = False
    """it has waited longer than such waits take"""


class ProfilePart(Message):
    """A numbered part of a device's measured layer profile (JSON text, cut)."""

    agent: str
    model: str
    part: int
    parts: int
    text: str


class FieldInfo(Frozen):
    """Type and shape of one tensor of a sample."""

    dtype: str
    shape: tuple[int, ...]


class DataInfo(Message):
    """What a data set holds."""

    agent: str
    job: str
    samples: int = Field(ge=0)
    inputs: tuple[FieldInfo, ...]
    target: FieldInfo
    classes: int | None = None
    vocabulary: int | None = None
    text: str = ""


class CoordinatorStatus(Message):
    """Birth and last will of the coordinator."""

    state: Literal["online", "offline", "lost"]
    connection: str
    session: str = ""
    asteroid: str = __version__
    protocol: int = PROTOCOL


class Request(Message):
    """What the command line asks the coordinator for."""

    id: str
    verb: Literal["submit", "plan", "profile", "stop", "resume", "jobs", "status", "export", "drain", "shutdown"]
    job: str = ""
    device: str = ""
    """of ``drain``"""
    spec: JobSpec | None = None
    options: dict[str, str] = Field(default_factory=dict)


class Answer(Message):
    """Answer to a request; ``what`` and ``remedy`` are sentences if it failed."""

    id: str
    ok: bool
    exit_code: int = 0
    what: str = ""
    remedy: str = ""
    job: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class JobSpecMessage(Message):
    """What was asked for."""

    job: str
    spec: JobSpec


class DeviceMemory(Frozen):
    """Memory that the plan accounts for on one device, beside what its owner lends."""

    device: str
    need_mb: float
    budget_mb: float


class PlanSummary(Message):
    """The plan in force."""

    job: str
    plan: Plan
    layers: int
    memory: tuple[DeviceMemory, ...] = ()
    costs: Costs | None = None
    text: str = ""
    snapshot_every: int = 0
    """rounds between snapshots; 0: only checkpoints"""


JobPhase = Literal[
    "new",
    "profiling",
    "planning",
    "preparing",
    "running",
    "halting",
    "finishing",
    "done",
    "failed",
    "stopped",
    "paused",
]


class JobState(Message):
    """Where a job is."""

    job: str
    phase: JobPhase
    generation: int = 0
    rounds: int = 0
    completed: int = 0
    """rounds that every worker has stepped"""
    durable: int = 0
    """rounds whose state any single loss leaves whole"""
    durable_generation: int = 0
    """generation whose snapshots (or checkpoint) made it so; older snapshots are not needed any more"""
    saved: int = 0
    """rounds that the coordinator's checkpoint holds"""
    abandoned: int = 0
    """rounds of a checkpoint of this generation that could not be written: nobody waits for it"""
    start_round: int = 0
    reason: str = ""
    remedy: str = ""
    exit_code: int = 0
    model_file: str = ""


NO_STAGE = -1


class Assignment(Message):
    """What one device does in one generation."""

    job: str
    agent: str
    plan: Plan
    stage: int = Field(ge=-1)
    """of the plan; ``NO_STAGE``: this device is not in it, and only gives the others what it has"""
    train: TrainSpec
    optimizer: OptimizerSpec
    program_sha256: str
    program_bytes: int
    sources: tuple[Source, ...] = ()
    """where the state of each of the stage's layers comes from"""
    live: bool = False
    """go on with the working state of the generation before; nothing is fetched"""
    moved: bool = False
    """bring the working state to the start round, keep a snapshot of it for who asks, then take the new stage"""
    scale: float | None = None
    """multiplies the gradients of the step that a device has yet to take to reach the start round"""
    base: int = 0
    """snapshots of so many rounds are kept until others are durable; all others may go"""
    start_saved: bool = False
    """the coordinator holds the state of the start round, so no snapshot of it is needed"""
    snapshot_every: int = 0
    """rounds between snapshots that go to the backups too; 0: only checkpoints"""
    start_round: int
    rounds: int
    samples: int
    """samples of the training split"""
    validation: int
    """samples of the validation split"""
    checkpoint_every: int
    data_owner: str
    data: DataSpec | None = None
    """only for the device that owns the data"""
    backend: str = "torch"
    session: str = ""
    """the run of the job"""


class Metrics(Message):
    """One round, or the validation after it."""

    job: str
    round: int
    rounds: int
    kind: Literal["train", "validation"]
    loss: Figure | None
    accuracy: Figure | None = None
    samples_per_s: Figure | None = None
    seconds: Figure | None = None
    eta_s: Figure | None = None
    busy: dict[str, Figure] = Field(default_factory=dict)
    """device: part of the round that it computed"""


class Event(Message):
    """One line of a job's story."""

    job: str
    seq: int
    at: float
    """seconds since 1970, by the coordinator's clock; for people, nothing decides by it"""
    kind: str
    text: str
    data: dict[str, Any] = Field(default_factory=dict)


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Return the JSON of a message; ValueError if it is too long for a control topic."""
    data = message.model_dump_json(by_alias=True, exclude_none=False).encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"{type(message).__name__} of {len(data)} bytes is over the limit of {MAX_BYTES}")
    return data


def decode(model: type[M], data: bytes) -> M:
    """Read a message from the wire; fields that this release does not know are ignored.

    Raises:
        WireError: too long, not JSON, or not this message; the sentence names the first thing that is wrong.
    """
    if len(data) > MAX_BYTES:
        raise WireError(f"{model.__name__} of {len(data)} bytes is over the limit of {MAX_BYTES}.")
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict):
            raise WireError(f"{model.__name__} is not a JSON object.")
        return model.model_validate(_known(model, raw))
    except (ValueError, RecursionError, ValidationError) as error:
        text = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        where = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        raise WireError(f"{model.__name__} cannot be read: {where} {text}".strip()) from None


def _known(model: type[BaseModel], raw: dict[str, Any]) -> dict[str, Any]:
    names = set(model.model_fields) | {f.alias for f in model.model_fields.values() if f.alias}
    return {k: v for k, v in raw.items() if k in names}
