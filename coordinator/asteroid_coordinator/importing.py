"""From a job file to what can be planned and fed: the model in layers, the data in rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from asteroid_coordinator.model.importer import ImportedModel, import_model
from asteroid_core.data import open_source
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.source import Source
from asteroid_core.errors import InputError
from asteroid_core.plan import Plan
from asteroid_core.profile import DeviceProfile
from asteroid_core.rounds import RoundPlan
from asteroid_core.spec import JobSpec


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
    """

    spec: JobSpec
    model: ImportedModel
    source: Source
    split: Split
    rounds: int
    notes: tuple[str, ...]
    profiles: dict[str, DeviceProfile] = field(default_factory=dict)

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
        return round_plan(self.spec, self.samples, plan.micro_size)

    def feed_plan(self, plan: Plan) -> FeedPlan:
        """What the feeder sends under a plan."""
        return FeedPlan(self.round_plan(plan), self.source, self.split)


def round_plan(spec: JobSpec, samples: int, micro: int) -> RoundPlan:
    """The rounds of a job."""
    train = spec.train
    return RoundPlan(
        samples=samples,
        batch=train.batch,
        micro=micro,
        epochs=train.epochs,
        seed=train.seed,
        max_rounds=train.rounds,
    )


def import_job(spec: JobSpec) -> Imports:
    """Open the data and export the model.

    Raises:
        InputError: unknown model, missing data, a model that cannot be exported or cut, data that does not fit it.
    """
    source = open_source(spec.data, seed=spec.train.seed, dtype=spec.train.dtype)
    split = Split.of(len(source), spec.data.validation, spec.train.seed)
    if len(split.training) < spec.train.batch:
        raise InputError(
            f"The training split has {len(split.training)} samples, less than one batch of {spec.train.batch}.",
            "Use a smaller train.batch or more data.",
        )
    model = import_model(spec.model, source, dtype=spec.train.dtype, seed=spec.train.seed, max_layers=spec.plan.layers)
    rounds = round_plan(spec, len(split.training), spec.train.batch)
    dropped = rounds.dropped
    notes = (f"the last {dropped} samples do not fill a round and are left out",) if dropped else ()
    return Imports(spec, model, source, split, rounds.rounds, notes)
