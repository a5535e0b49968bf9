"""How long a recovery took, by phases, from what the coordinator says, hears and decides. Pure; times are handed in.

    lost -- halt -- plan -- build -- move and restore -- running -- again -- where the job was

A recovery begins when a loss is said and ends when as many rounds are completed as then. Another loss meanwhile
belongs to the same recovery. How long it took to notice the loss, the coordinator cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asteroid_coordinator.job.state import ENDED, Halted, Job, WorkerMoved
from asteroid_coordinator.stock import StatePart
from asteroid_core.wire.messages import Loading

_LOST = frozenset({"device-lost", "device-late"})
_ACTIVE = frozenset({"planning", "preparing", "running", "halting"})


@dataclass(frozen=True)
class Recovered:
    """A recovery that is over. Seconds are by the coordinator's clock, those of moving by the workers'.

    Attributes:
        devices: that were lost, in that order.
        way: regroup, move, replay or heavy.
        round: where it went on.
        again: rounds that were run again.
        moves: runs of layers and from whom to whom their state went.
        moved_bytes: state that travelled; through the coordinator it counts both ways.
        halt_s: until the workers had said how far they are.
        plan_s: until the new plan.
        build_s: until the new stage programs were made and the assignments were published.
        move_s: longest time that a worker waited for state.
        restore_s: what else passed until all were ready: program, known-answer test, loading.
        again_s: from the first sample fed until the job was where it had been.
        workers: what each one fetched and loaded.
    """

    devices: tuple[str, ...]
    way: str
    round: int
    again: int
    moves: tuple[Mapping[str, Any], ...]
    moved_bytes: int
    halt_s: float
    plan_s: float
    build_s: float
    move_s: float
    restore_s: float
    again_s: float
    workers: Mapping[str, Loading] = field(default_factory=dict)

    @property
    def resumed_s(self) -> float:
        """From the loss to the first sample fed."""
        return self.halt_s + self.plan_s + self.build_s + self.move_s + self.restore_s

    @property
    def total_s(self) -> float:
        """From the loss until the job was where it had been."""
        return self.resumed_s + self.again_s

    @property
    def text(self) -> str:
        """The story of it in a line."""
        parts = [f"stopped in {_s(self.halt_s)}"] if self.halt_s else []
        parts.append(f"planned in {_s(self.plan_s + self.build_s)}")
        moved = f"{self.moved_bytes / 1e6:.1f} MB moved in {_s(self.move_s)}"
        parts.append(moved if self.moved_bytes else "no weights moved")
        parts.append(f"restored in {_s(self.restore_s)}")
        if self.again:
            parts.append(f"{self.again} round{'s' * (self.again > 1)} run again in {_s(self.again_s)}")
        return f"recovered from the loss of {', '.join(self.devices)} in {_s(self.total_s)}: {', '.join(parts)}"

    def data(self) -> dict[str, Any]:
        """The figures, as they stand in the event."""
        names = ("halt_s", "plan_s", "build_s", "move_s", "restore_s", "again_s", "resumed_s", "total_s")
        return {
            "devices": list(self.devices),
            "way": self.way,
            "round": self.round,
            "again": self.again,
            "moves": [dict(move) for move in self.moves],
            "moved_bytes": self.moved_bytes,
            **{name: round(getattr(self, name), 4) for name in names},
            "workers": {device: loading.model_dump(mode="json") for device, loading in self.workers.items()},
        }


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


@dataclass
class _Open:
    """A recovery under way; times of phases that are not yet over are None."""

    lost: float
    completed: int
    devices: list[str]
    halted: float | None = None
    planned: float | None = None
    built: float | None = None
    running: float | None = None
    way: str = ""
    round: int = 0
    moves: Sequence[Mapping[str, Any]] = ()
    collected: int = 0
    workers: dict[str, Loading] = field(default_factory=dict)

    def again(self, device: str) -> None:
        """One more loss: what was done since the first one is done again."""
        if device not in self.devices:
            self.devices.append(device)
        self.planned = self.built = self.running = None
        self.workers.clear()


class Recoveries:
    """Listens to one job, and tells of each recovery when it is over."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._open: _Open | None = None

    def said(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        """Take a line of the story, as it is told."""
        job, under_way = self._job, self._open
        if kind in _LOST:
            if under_way is not None:
                under_way.again(str(data["device"]))
            elif job is not None and job.plan is not None and job.phase in _ACTIVE:
                self._open = _Open(now, job.completed, [str(data["device"])])
        elif under_way is not None and kind == "planned":
            under_way.planned = now
        elif under_way is not None and kind in ("replay", "regroup", "move"):
            under_way.way, under_way.round = kind, int(data.get("round", 0))
            under_way.moves = data.get("moves", ())
        elif under_way is not None and kind == "running":
            under_way.running = now

    def heard(self, item: object, now: float) -> None:
        """Take what comes into the job's inbox, before it is acted on."""
        job, under_way = self._job, self._open
        if job is None or under_way is None:
            return
        match item:
            case Halted():
                under_way.halted = now
            case StatePart(answer=True, data=data):
                under_way.collected += len(data)
            case WorkerMoved(state="ready", agent=agent, loading=Loading() as loading):
                if item.generation == job.generation:
                    under_way.workers[agent] = loading

    def passed(self, job: Job, now: float) -> Recovered | None:
        """Take the job after each step, when its effects are done; returns a recovery that is over with it."""
        self._job, under_way = job, self._open
        if under_way is None:
            return None
        if job.phase in ENDED:
            self._open = None
        elif job.phase == "preparing" and under_way.built is None:
            under_way.built = now
        elif under_way.running is not None and job.completed >= under_way.completed:
            self._open = None
            return _over(job, under_way, under_way.running, now)
        return None


def _over(job: Job, it: _Open, running: float, now: float) -> Recovered:
    halted = it.lost if it.halted is None else it.halted
    planned = halted if it.planned is None else it.planned
    built = planned if it.built is None else it.built
    again = max(0, it.completed - it.round)
    move = min(max((w.fetch_s for w in it.workers.values()), default=0.0), running - built)
    return Recovered(
        devices=tuple(it.devices),
        way="heavy" if job.heavy else it.way,
        round=it.round,
        again=again,
        moves=tuple(it.moves),
        moved_bytes=it.collected + sum(w.fetched_bytes for w in it.workers.values()),
        halt_s=halted - it.lost,
        plan_s=planned - halted,
        build_s=built - planned,
        move_s=move,
        restore_s=running - built - move,
        again_s=now - running if again else 0.0,
        workers=dict(it.workers),
    )
