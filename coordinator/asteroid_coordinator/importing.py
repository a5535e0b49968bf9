"""From a job file to what can be planned and fed: the model in layers, the data in rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from asteroid_coordinator.model.importer import ImportedModel, import_model
from asteroid_core.data import open_source
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.source import Array, Field, Indices, Source
from asteroid_core.errors import InputError
from asteroid_core.link.probe import LinkSpeed
from asteroid_core.plan import Plan
from asteroid_core.profile import DeviceProfile
from asteroid_core.rounds import RoundPlan
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import DataInfo


@dataclass
class Imports:
    """Model and data of one job, and the profiles measured so far.

    Attributes:
        spec: what was asked for.
        model: the layers and their programs.
        source: the data set.
        split: which samples train and which validate.
        rounds: training rounds.
        notes: what a person should know (samples dropped at the end, ...).
        profiles: measured profile of each device.
        hub_bytes_per_s: measured speed of the broker's own link, if it holds devices up.
        coordinator: the coordinator's own link, if measured.
    """

    spec: JobSpec
    model: ImportedModel
    source: Source
    split: Split
    rounds: int
    notes: tuple[str, ...]
    profiles: dict[str, DeviceProfile] = field(default_factory=dict)
    hub_bytes_per_s: float | None = None
    coordinator: LinkSpeed | None = None

    @property
    def samples(self) -> int:
        """Samples of the training split."""
        return len(self.split.training)

    @property
    def validation(self) -> int:
        """Samples of the validation split."""
        return len(self.split.validation)

    def round_plan(self, plan: Plan) -> RoundPlan:
        """Rounds under a plan: the mini-batch is the job's, only its cut into micro-batches is the plan's."""
        return RoundPlan.of(self.spec.train, self.samples, plan.micro_size)

    def feed_plan(self, plan: Plan) -> FeedPlan:
        """What the feeder sends under a plan."""
        return FeedPlan(self.round_plan(plan), self.source, self.split)


class RemoteSource:
    """A data set that lies on a device: its shape is known here, its samples are not.

    Args:
        info: what the device said.
    """

    def __init__(self, info: DataInfo) -> None:
        self._info = info
        self.inputs = tuple(Field(f.dtype, f.shape) for f in info.inputs)
        self.target = Field(info.target.dtype, info.target.shape)
        self.classes = info.classes
        self.vocabulary = info.vocabulary

    def __len__(self) -> int:
        return self._info.samples

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Refused: only the device can read them."""
        raise InputError(f"The data lies on {self._info.agent} and is fed from there.", "This is a bug; report it.")

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Refused: only the device can count them."""
        raise InputError(f"The data lies on {self._info.agent} and is fed from there.", "This is a bug; report it.")

    def describe(self) -> str:
        """What the device said."""
        return f"{self._info.text} on {self._info.agent}"


def import_job(spec: JobSpec, remote: DataInfo | None = None) -> Imports:
    """Open the data (or take what its device said about it) and export the model.

    Raises:
        InputError: unknown model, missing data, a model that cannot be exported or cut, data that does not fit it.
    """
    source: Source
    if remote is not None:
        source = RemoteSource(remote)
    else:
        source = open_source(spec.data, seed=spec.train.seed, dtype=spec.train.dtype)
    split = Split.of(len(source), spec.data.validation, spec.train.seed)
    if len(split.training) < spec.train.batch:
        raise InputError(
            f"The training split has {len(split.training)} samples, less than one batch of {spec.train.batch}.",
            "Use a smaller train.batch or more data.",
        )
    model = import_model(spec.model, source, dtype=spec.train.dtype, seed=spec.train.seed, max_layers=spec.plan.layers)
    rounds = RoundPlan.of(spec.train, len(split.training), spec.train.batch)
    dropped = rounds.dropped
    notes = (f"the last {dropped} samples do not fill a round and are left out",) if dropped else ()
    return Imports(spec, model, source, split, rounds.rounds, notes)
