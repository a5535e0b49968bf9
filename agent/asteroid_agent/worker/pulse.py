"""The worker's sign of life: what the compute thread is at, said each second by a thread of its own.

The compute thread replaces one value, ``Pulse.moment``; the beating thread reads it. So a worker beats while torch
computes, and a process that is stopped does not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from asteroid_core.clock import Clock
from asteroid_core.detector import BEAT_S
from asteroid_core.errors import AsteroidError
from asteroid_core.ids import COORDINATOR
from asteroid_core.wire.messages import Beat

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Moment:
    """What a worker is at.

    Attributes:
        generation: that it works on.
        steps: instructions done in the life of the process.
        waiting: whom it waits for.
        since: when this wait began.
        patience_s: how long such a wait may take.
    """

    generation: int = 0
    steps: int = 0
    waiting: tuple[str, ...] = (COORDINATOR,)
    since: float = 0.0
    patience_s: float = 0.0

    def late(self, now: float) -> bool:
        """Whether it has waited for longer than such waits take."""
        return bool(self.waiting) and now - self.since > self.patience_s


class Pulse:
    """Written by the compute thread alone."""

    def __init__(self) -> None:
        self.moment = Moment()

    def enter(self, generation: int, now: float) -> None:
        """A generation begins; until its first instruction it is the coordinator's turn."""
        self.moment = Moment(generation, self.moment.steps, since=now)

    def idle(self, now: float) -> None:
        """Nothing is left to do but what the coordinator says next."""
        self.moment = replace(self.moment, waiting=(COORDINATOR,), since=now)

    def wait(self, waiting: tuple[str, ...], since: float, patience_s: float) -> None:
        """Nothing can be done until these have sent something."""
        self.moment = replace(self.moment, waiting=waiting, since=since, patience_s=patience_s)

    def work(self) -> None:
        """Something is done now."""
        if self.moment.waiting:
            self.moment = replace(self.moment, waiting=())

    def done(self) -> None:
        """An instruction has been done."""
        self.moment = replace(self.moment, steps=self.moment.steps + 1, waiting=())


@dataclass(frozen=True)
class Name:
    """Whose sign of life it is."""

    agent: str
    job: str


def beat(name: Name, connection: str, count: int, moment: Moment, chunks: int, now: float) -> Beat:
    """Return a sign of life.

    Args:
        name: of device and job.
        connection: id of the connection that the worker last spoke on.
        count: number of this beat.
        moment: what the worker is at.
        chunks: of tensors that it has received so far.
        now: time, on the clock of ``moment``.
    """
    return Beat(
        agent=name.agent,
        job=name.job,
        generation=moment.generation,
        connection=connection,
        count=count,
        progress=moment.steps + chunks,
        waiting=moment.waiting,
        late=moment.late(now),
    )


class Heart(threading.Thread):
    """Says a beat each second until it is told to stop.

    Args:
        name: of device and job.
        pulse: written by the compute thread.
        chunks: counts what the link has received.
        connection: that the worker last spoke on; empty before its first word.
        clock: that of ``pulse``.
        publish: sends a beat; an error means that the link is closed.
    """

    def __init__(
        self,
        name: Name,
        pulse: Pulse,
        chunks: Callable[[], int],
        connection: Callable[[], str],
        clock: Clock,
        publish: Callable[[Beat], None],
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self._of, self._pulse, self._chunks, self._connection = name, pulse, chunks, connection
        self._clock, self._publish = clock, publish
        self._stopped = threading.Event()
        self._count = 0

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()

    def run(self) -> None:
        """Beat."""
        try:
            while not self._stopped.wait(BEAT_S):
                self.once()
        except AsteroidError as error:
            log.debug("no more signs of life: %s", error)

    def once(self) -> None:
        """Beat once, if the worker has spoken already."""
        if connection := self._connection():
            self._count += 1
            args = (self._of, connection, self._count, self._pulse.moment, self._chunks(), self._clock.now())
            self._publish(beat(*args))
