"""Measures a model's layers on the devices: asks for profile workers, sends them the layers, collects the results.

Each different layer program is measured once a device; results are cached in the store by (device, model, backend), so
the same model is not measured twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from asteroid_coordinator.cluster.registry import Device, Registry
from asteroid_coordinator.importing import Imports
from asteroid_coordinator.settings import Settings
from asteroid_coordinator.store import Store
from asteroid_core.errors import InputError
from asteroid_core.link.tensors import TensorLink
from asteroid_core.profile import DeviceProfile
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import Command, DataInfo, ProfilePart, WorkerStatus
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)

DEVICES_S = 10.0
"""Time that devices have to appear before a job says that there are none."""
SETTLE_S = 1.0
"""Time after the first device in which others may still appear."""
SILENT_S = 120.0
"""Time without any news from a profile worker after which its device is left out."""

Say = Callable[[str, str], None]


@dataclass(frozen=True)
class _News:
    """Something that a profile worker, its will or its supervisor said."""

    device: str
    state: str
    reason: str = ""
    connection: str = ""
    part: ProfilePart | None = None


class Profiler:
    """One measurement of one model on all devices that have none yet."""

    def __init__(
        self,
        session: str,
        registry: Registry,
        store: Store,
        command: Callable[[str, Command], None],
        open_link: Callable[[str], TensorLink],
        forget: Callable[[Profiler], None],
        settings: Settings,
    ) -> None:
        self._session, self._registry, self._store = session, registry, store
        self._command, self._open_link, self._forget = command, open_link, forget
        self._settings = settings
        self._job = ""
        self._model = ""
        self._news: queue.Queue[_News] = queue.Queue()

    # Called by the service's thread

    def worker(self, job: str, status: WorkerStatus) -> None:
        """Take a worker's state."""
        if job == self._job:
            self._news.put(_News(status.agent, status.state, status.reason, status.connection))

    def part(self, part: ProfilePart) -> None:
        """Take a part of a profile."""
        if part.model == self._model:
            self._news.put(_News(part.agent, "part", part=part))

    def data(self, info: DataInfo) -> None:
        """Data sets are not for us."""

    def refused(self, command: str, device: str, reason: str) -> None:
        """Take a supervisor's refusal."""
        if command.startswith(f"{self._job}-"):
            self._news.put(_News(device, "failed", reason))

    def lost(self, device: str, reason: str) -> None:
        """Take the loss of a device."""
        self._news.put(_News(device, "lost", reason))

    # Called by the job's thread

    def measure(
        self, spec: JobSpec, imports: Imports, say: Say, cancelled: Callable[[], bool]
    ) -> tuple[dict[str, DeviceProfile], dict[str, str]]:
        """Return the profile of each device, and why the others have none.

        Once ``cancelled`` says so, what was measured until then is returned.

        Raises:
            InputError: no device is there.
        """
        try:
            devices = self._devices(spec)
            bundle = _bundle(spec, imports)
            key = hashlib.sha256(bundle).hexdigest()[:16]
            self._model, self._job = key, f"profile-{key}"
            done: dict[str, DeviceProfile] = {}
            todo: dict[str, Device] = {}
            for device in devices:
                cached = self._store.get_profile(device.name, key, _backends(device))
                if cached is not None:
                    done[device.name] = DeviceProfile.from_text(cached)
                else:
                    todo[device.name] = device
            if not todo:
                say("profiled", f"{len(done)} devices are known already")
                return self._with_link(done), {}
            say("profiling", f"measuring {len(imports.model.layers)} layers on {', '.join(sorted(todo))}")
            measured, failed = self._run(bundle, todo, say, cancelled)
            for name, profile in measured.items():
                self._store.put_profile(name, key, _backends(todo[name]), profile.to_text())
            return self._with_link(done | measured), failed
        finally:
            self._forget(self)

    def _with_link(self, profiles: dict[str, DeviceProfile]) -> dict[str, DeviceProfile]:
        """The profiles, with the link speed of the settings if they have one."""
        speed = self._settings.link_bytes_per_s
        if speed is None:
            return profiles
        return {name: p.model_copy(update={"bytes_per_s": speed}) for name, p in profiles.items()}

    def _devices(self, spec: JobSpec) -> list[Device]:
        wanted = set(spec.plan.devices)
        begin = time.monotonic()
        first: float | None = None
        while True:
            present = [d for d in self._registry.present() if not wanted or d.name in wanted]
            now = time.monotonic()
            if present and first is None:
                first = now
            if wanted and len(present) == len(wanted):
                return present
            if not wanted and first is not None and now - first > SETTLE_S:
                return present
            if now - begin > DEVICES_S:
                break
            time.sleep(0.05)
        if foreign := self._registry.foreign():
            raise InputError("No device can take part. " + " ".join(foreign))
        missing = sorted(wanted - {d.name for d in present})
        if missing:
            raise InputError(
                f"The devices {', '.join(missing)} are not there.",
                "asteroid devices lists those that are; mend plan.devices or start their agents.",
            )
        raise InputError(
            f"No device is ready on the broker at {self._settings.address}.",
            "Start an agent on each device (systemctl start asteroid-agent) and look with: asteroid devices",
        )

    def _run(
        self, bundle: bytes, todo: dict[str, Device], say: Say, cancelled: Callable[[], bool]
    ) -> tuple[dict[str, DeviceProfile], dict[str, str]]:
        link = self._open_link(self._job)
        link.set_generation(1)
        failed: dict[str, str] = {}
        parts: dict[str, dict[int, str]] = {}
        done: dict[str, DeviceProfile] = {}
        sent: dict[str, str] = {}
        """device: the connection of the worker that was sent the layers"""
        try:
            for device in todo:
                self._command(device, self._ask("profile"))
            last = time.monotonic()
            while len(done) + len(failed) < len(todo) and not cancelled():
                try:
                    news = self._news.get(timeout=0.5)
                except queue.Empty:
                    if time.monotonic() - last > SILENT_S:
                        for device in set(todo) - set(done) - set(failed):
                            failed[device] = "its measurement gave no sign of life"
                    continue
                device = news.device
                if device not in todo or device in done or device in failed:
                    continue
                last = time.monotonic()
                if news.state == "loading" and device not in sent:
                    sent[device] = news.connection
                    link.send(device, Tag(Kind.PROGRAM, 1), Tensor.of_bytes(bundle))
                elif news.state == "lost" and news.connection and news.connection != sent.get(device):
                    continue  # the late will of a worker that this one has replaced
                elif news.state in ("failed", "lost") or (news.state == "exited" and device in sent):
                    failed[device] = news.reason or f"its profile worker is {news.state}"
                elif news.part is not None:
                    have = parts.setdefault(device, {})
                    have[news.part.part] = news.part.text
                    if len(have) == news.part.parts:
                        profile = DeviceProfile.from_text("".join(have[i] for i in sorted(have)))
                        done[device] = profile
                        say("profiled", f"{device}: {profile.describe()}")
            return done, failed
        finally:
            for device in todo:
                self._command(device, self._ask("stop"))
            link.close()

    def _ask(self, verb: str) -> Command:
        return Command.model_validate(
            {
                "id": f"{self._job}-{verb}-{self._session[:8]}-{int(time.time())}",
                "verb": verb,
                "job": self._job,
                "generation": 1,
                "model": self._model,
                "session": self._session,
            }
        )


def _backends(device: Device) -> str:
    """What the measured times depend on, beside the device itself."""
    info = device.info
    if info is None:
        return ""
    return json.dumps({"backends": info.backends, "cores": info.cores, "asteroid": info.asteroid}, sort_keys=True)


def batches(spec: JobSpec) -> tuple[int, ...]:
    """Batch sizes to measure: powers of two up to the largest micro-batch that may be planned."""
    top = spec.train.micro_batch if isinstance(spec.train.micro_batch, int) else min(spec.train.batch, 32)
    out = [1]
    while out[-1] * 2 < top:
        out.append(out[-1] * 2)
    return tuple(out) if out[-1] == top else (*out, top)


def _bundle(spec: JobSpec, imports: Imports) -> bytes:
    """Every different layer program once, and which layer is which."""
    programs: dict[bytes, int] = {}
    layers = []
    for number in range(len(imports.model.layers)):
        program = imports.model.stage(number, number + 1).shape_only().to_bytes()
        layers.append(programs.setdefault(program, len(programs)))
    return json.dumps(
        {
            "batches": batches(spec),
            "layers": layers,
            "optimizer": spec.optimizer.model_dump(),
            "programs": [p.decode() for p in programs],
        },
        separators=(",", ":"),
    ).encode()
