"""Watches a running job: tells the failure detector what is heard of its workers, and the job what it finds.

A thread of its own, because a deadline must not wait for whatever the job's thread is doing. Signs of life and the
state of our own link come straight from the service; births, wills and exits come through the job's inbox, in one order
with the job's phases, so none falls between two of them. While a job prepares or halts, its own deadlines do this.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from asteroid_coordinator.job.state import GONE, Broken, DeviceGone, Job, JobEvent, Stuck, WorkerMoved
from asteroid_core.clock import Clock, MonotonicClock
from asteroid_core.detector import Beat as Sign
from asteroid_core.detector import Detector, Verdict
from asteroid_core.link.base import SUPERVISOR_KEEPALIVE_S, SUPERVISOR_WILL_DELAY_S, WORKER_KEEPALIVE_S
from asteroid_core.wire.messages import Beat

log = logging.getLogger(__name__)


class Watch(threading.Thread):
    """See the module's header.

    Args:
        job: its name.
        tell: takes what is found, from this thread.
        clock: time.
    """

    def __init__(self, job: str, tell: Callable[[JobEvent], None], clock: Clock | None = None) -> None:
        super().__init__(name=f"watch-{job}", daemon=True)
        self._tell, self._clock = tell, clock or MonotonicClock()
        self._detector = Detector()
        self._events: queue.SimpleQueue[tuple[float, Callable[[float], None]]] = queue.SimpleQueue()
        self._followed: int | None = None
        """Generation that is judged; the job's thread's."""
        self._generation = 0
        """The same, as far as this thread is."""
        self._stopped = threading.Event()

    # The service's thread

    def beat(self, message: Beat) -> None:
        """Take a worker's sign of life."""
        sign = Sign(
            message.generation, message.connection, message.count, message.progress, message.waiting, message.late
        )
        self._put(lambda now: self._detector.beat(message.agent, sign, now))

    def link(self, *, up: bool) -> None:
        """Our own connection to the broker broke, or stands again."""
        self._put(lambda now: self._detector.link(now, up=up))

    # The job's thread

    def takes(self, job: Job, event: JobEvent) -> bool:
        """Tell the detector what an event says of a device; returns whether its verdict is to be waited for.

        It is for a loss while the job runs. In other phases the job deals with losses itself.
        """
        match event:
            case WorkerMoved(agent=agent, state=state, connection=connection) if state not in GONE:
                self._put(lambda _: self._detector.born(agent, "worker", connection))
                return False
            case WorkerMoved(agent=agent, state=state, reason=reason, connection=connection) if _judged(job, agent):
                if state == "lost":
                    self._put(lambda now: self._detector.will(agent, "worker", connection, now, WORKER_KEEPALIVE_S))
                else:
                    how = f"its worker {state}" + (f": {reason}" if reason else "")
                    self._put(lambda _: self._detector.exited(agent, how))
                return True
            case DeviceGone(device=device, connection=connection) if connection and _judged(job, device):
                self._put(lambda now: self._supervisor_lost(device, connection, now))
                return True
            case _:
                return False

    def follow(self, job: Job) -> None:
        """Judge while the job runs, and nobody in any other phase."""
        running = job.generation if job.phase == "running" else None
        if running == self._followed:
            return
        self._followed = running
        plan = job.plan if running is not None else None
        devices, predicted_s = (plan.devices, plan.predicted_s or 0.0) if plan is not None else ((), 0.0)
        generation = job.generation

        def start(now: float) -> None:
            self._generation = generation
            self._detector.start(generation, devices, now, predicted_s)

        self._put(start)

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    # This thread

    def run(self) -> None:
        """Watch until told to stop."""
        try:
            while not self._stopped.is_set():
                self.turn(self._detector.pause(self._clock.now()))
        except Exception as error:
            log.exception("the watch has ended")
            self._tell(Broken(f"{type(error).__name__}: {error}", "This is a bug; please report the log."))

    def turn(self, timeout: float) -> bool:
        """Deal with one event, or with none within the time, and tell what is certain then; returns whether one came.

        Time is that at which the event came: if this thread is late, it is the only one.
        """
        try:
            at, deal = self._events.get(timeout=timeout)
        except queue.Empty:
            at, came = self._clock.now(), False
        else:
            deal(at)
            came = True
        for verdict in self._detector.verdicts(at):
            self._tell(self._event(verdict))
        return came

    def _event(self, verdict: Verdict) -> JobEvent:
        if verdict.device is None:
            return Stuck(self._generation, verdict.reason, verdict.worst_s)
        return DeviceGone(verdict.device, verdict.reason, source=verdict.source, worst_s=verdict.worst_s)

    def _supervisor_lost(self, device: str, connection: str, now: float) -> None:
        # The registry has seen all births and lets no other will pass.
        self._detector.born(device, "supervisor", connection)
        self._detector.will(device, "supervisor", connection, now, SUPERVISOR_KEEPALIVE_S, SUPERVISOR_WILL_DELAY_S)

    def _put(self, deal: Callable[[float], None]) -> None:
        self._events.put((self._clock.now(), deal))


def _judged(job: Job, device: str) -> bool:
    return job.phase == "running" and job.plan is not None and device in job.plan.devices
