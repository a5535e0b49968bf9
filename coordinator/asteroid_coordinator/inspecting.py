"""Asks the device on which a job's data lies what it holds."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable

from asteroid_coordinator.cluster.registry import Registry
from asteroid_core.errors import InputError
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import Command, DataInfo, ProfilePart, WorkerStatus

DEVICE_S = 10.0
"""Time that the device has to appear."""
SILENT_S = 120.0
"""Time that it has to open its data."""


class Inspector:
    """One look at one data set."""

    def __init__(
        self,
        session: str,
        registry: Registry,
        command: Callable[[str, Command], None],
        forget: Callable[[Inspector], None],
    ) -> None:
        self._session, self._registry, self._command, self._forget = session, registry, command, forget
        self._job, self._device = "", ""
        self._news: queue.Queue[DataInfo | str] = queue.Queue()

    # Called by the service's thread

    def worker(self, job: str, status: WorkerStatus) -> None:
        """Take a worker's state."""
        if (job, status.agent) == (self._job, self._device) and status.state in ("failed", "exited"):
            self._news.put(status.reason or f"its worker {status.state}")

    def part(self, part: ProfilePart) -> None:
        """Profiles are not for us."""

    def data(self, info: DataInfo) -> None:
        """Take what the device says about its data."""
        if (info.job, info.agent) == (self._job, self._device):
            self._news.put(info)

    def refused(self, command: str, device: str, reason: str) -> None:
        """Take a supervisor's refusal."""
        if device == self._device and command.startswith(f"{self._job}-"):
            self._news.put(reason)

    def lost(self, device: str, reason: str) -> None:
        """Take the loss of a device."""
        if device == self._device:
            self._news.put(f"it is lost: {reason}")

    # Called by the job's thread

    def look(self, spec: JobSpec, cancelled: Callable[[], bool]) -> DataInfo | None:
        """Return what the data set holds; None once ``cancelled`` says so.

        Raises:
            InputError: the device is not there, or cannot open the data.
        """
        try:
            self._device = spec.data.owner
            what = f"{spec.data.model_dump_json()} {spec.train.dtype} {spec.train.seed}"
            self._job = f"inspect-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
            self._wait_for_device()
            self._command(self._device, self._ask(spec))
            deadline = time.monotonic() + SILENT_S
            while not cancelled():
                try:
                    news = self._news.get(timeout=0.25)
                except queue.Empty:
                    if time.monotonic() > deadline:
                        raise self._error("it does not answer") from None
                    continue
                if isinstance(news, DataInfo):
                    return news
                raise self._error(news)
            return None
        finally:
            self._forget(self)

    def _error(self, reason: str) -> InputError:
        return InputError(
            f"The device {self._device} cannot open the data of this job: {reason}",
            "Check data.source and data.owner of the job file; the path is one on that device.",
        )

    def _wait_for_device(self) -> None:
        deadline = time.monotonic() + DEVICE_S
        while self._device not in {d.name for d in self._registry.present()}:
            if time.monotonic() > deadline:
                raise InputError(
                    f"The data of this job lies on {self._device}, which is not there.",
                    "Start its agent, or mend data.owner in the job file; see `asteroid devices`.",
                )
            time.sleep(0.05)

    def _ask(self, spec: JobSpec) -> Command:
        return Command(
            id=f"{self._job}-{self._session[:8]}-{int(time.time())}",
            verb="inspect",
            job=self._job,
            session=self._session,
            data=spec.data,
            dtype=spec.train.dtype,
            seed=spec.train.seed,
        )
