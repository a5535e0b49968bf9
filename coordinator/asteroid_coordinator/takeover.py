"""What a coordinator writes down of a running job, so that the next one can take it over.

Workers outlive their coordinator: they wait for it, or run on until a snapshot needs its word. The next one knows them
by the job's run id. It makes them halt, so that it learns how far each is, and goes on with the state they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from asteroid_coordinator.job.state import ACTIVE, Job
from asteroid_core.wire.messages import WorkerStatus

WAIT_S = 15.0
"""Workers that lost the broker too have so long to be back: the link's longest pause, connecting, and the answer."""
POLL_S = 0.1
ALIVE = frozenset({"loading", "ready", "running", "done"})
"""States of a worker that still has what it had."""


@dataclass(frozen=True)
class Record:
    """A job in the middle of its run.

    Attributes:
        run: id of the run; the workers carry it.
        job: where it was.
    """

    run: str
    job: Job

    def to_text(self) -> str:
        """As the store keeps it. What each worker has reported is left out: they are asked again."""
        return _RECORD.dump_json(replace(self, job=replace(self.job, reported=()))).decode()


_RECORD = TypeAdapter(Record)


def recall(text: str | None) -> Record | None:
    """Read what an earlier coordinator wrote; None if there is nothing to take over.

    A record of another release that cannot be read any more is none: the job goes on from its last checkpoint.
    """
    if text is None:
        return None
    try:
        record = _RECORD.validate_json(text)
    except ValidationError:
        return None
    job = record.job
    return record if job.phase in ACTIVE and job.mode == "train" and job.plan is not None else None


def alive(record: Record, statuses: Mapping[str, WorkerStatus], present: Collection[str]) -> frozenset[str]:
    """Devices of the plan whose worker of this run still lives.

    Args:
        record: of the job.
        statuses: last word of each device's worker of this job.
        present: devices that are there.
    """
    plan = record.job.plan
    assert plan is not None
    left_out = {name for name, _ in record.job.excluded}
    return frozenset(
        name
        for name in set(plan.devices) - left_out
        if name in present
        and (status := statuses.get(name)) is not None
        and status.session == record.run
        and status.state in ALIVE
    )


def wait_for_workers(
    record: Record, look: Callable[[], frozenset[str]], cancelled: Callable[[], bool], wait_s: float = WAIT_S
) -> frozenset[str]:
    """Return who is alive, once all are, or when the time is over."""
    plan = record.job.plan
    assert plan is not None
    expected = set(plan.devices) - {name for name, _ in record.job.excluded}
    deadline = time.monotonic() + wait_s
    while not expected <= (found := look()) and time.monotonic() < deadline and not cancelled():
        time.sleep(POLL_S)
    return found
