"""From what a worker reports to what happens to its job. Pure."""

from __future__ import annotations

from asteroid_coordinator.job.state import Halted, JobEvent, Kept, RoundDone, WorkerFinished
from asteroid_core.held import Held
from asteroid_core.wire.messages import Report


def translate(report: Report) -> JobEvent | None:
    """Return the event that a report stands for; None if it moves nothing."""
    match report.kind:
        case "round":
            return RoundDone(report.agent, report.generation, report.round)
        case "finished":
            return WorkerFinished(report.agent, report.generation)
        case "halted":
            return Halted(report.agent, report.generation, report.round, report.voted, report.scale)
        case "kept" if 0 <= report.lo < report.hi:
            where = {"rounds": report.round, "lo": report.lo, "hi": report.hi}
            taken = report.generation if report.taken is None else min(report.taken, report.generation)
            return Kept(Held(device=report.agent, generation=max(taken, 0), **where), report.generation)
        case _:
            return None
