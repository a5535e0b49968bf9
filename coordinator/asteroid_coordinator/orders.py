"""What a job tells its devices: the assignment of each, and commands to their supervisors. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from asteroid_coordinator.job.state import Job, Prepare
from asteroid_coordinator.stock import Stock
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import NO_STAGE, Assignment, Command

if TYPE_CHECKING:
    from asteroid_coordinator.importing import Imports


def assignment(
    effect: Prepare, device: str, job: Job, imports: Imports, stock: Stock, snapshot_every: int, run: str
) -> Assignment:
    """What one device does in a generation.

    Args:
        effect: the generation.
        device: in its plan, or outside and serving.
        job: how many rounds there are.
        imports: the job's model and data.
        stock: programs of the devices in the plan.
        snapshot_every: rounds between snapshots.
        run: id of the job's run.
    """
    plan, spec = effect.plan, imports.spec
    serves = device in effect.serving
    return Assignment(
        job=job.name,
        agent=device,
        plan=plan,
        stage=NO_STAGE if serves else plan.stage_of(device),
        train=spec.train,
        optimizer=spec.optimizer,
        program_sha256="" if serves else stock.sha256(device),
        program_bytes=0 if serves else len(stock.programs[device]),
        sources=dict(effect.sources).get(device, ()),
        live=effect.live,
        moved=device in effect.moved,
        scale=effect.scale,
        base=effect.base,
        start_saved=effect.saved,
        snapshot_every=snapshot_every,
        start_round=effect.start_round,
        rounds=job.rounds,
        samples=imports.samples,
        validation=imports.validation,
        checkpoint_every=checkpoint_every(spec, job.rounds),
        data_owner=spec.data.owner,
        data=spec.data if spec.data.owner == device else None,
        session=run,
    )


def checkpoint_every(spec: JobSpec, rounds: int) -> int:
    """Rounds between checkpoints."""
    every = spec.checkpoint.every
    return max(1, rounds // 10) if every == "auto" else every


def command(job: Job, verb: Literal["prepare", "stop"], session: str, run: str) -> Command:
    """What a supervisor is to do for a job; its id begins with the job's name and generation."""
    return Command(
        id=f"{job.name}-{job.generation}-{verb}-{session[:8]}",
        verb=verb,
        job=job.name,
        generation=job.generation,
        session=session,
        run=run,
    )
