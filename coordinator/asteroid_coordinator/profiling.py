"""Measures a model's layers on the devices: asks for profile workers, sends them the layers, collects the results.

Before the layers they measure their links, one after the other and then together.

Each different layer program is measured once a device; results are cached in the store by (device, model, backend), so
the same model is not measured twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from asteroid_coordinator.cluster.registry import Device, Registry
from asteroid_coordinator.importing import Imports
from asteroid_coordinator.linkspeeds import measure_links
from asteroid_coordinator.settings import Settings
from asteroid_coordinator.store import Store
from asteroid_core.clock import MonotonicClock
from asteroid_core.errors import InputError
from asteroid_core.link.probe import LinkSpeed
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Frozen
from asteroid_core.profile import DeviceProfile, LayerInfo
from asteroid_core.spec import JobSpec
from asteroid_core.wire.messages import Command, DataInfo, ProfilePart, WorkerStatus
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)

DEVICES_S = 10.0
"""Time that devices have to appear before a job says that there are none."""
RUN_LAYERS = 4
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


class SharedLinks(Frozen):
    """Links that all devices share.

    Attributes:
        hub_bytes_per_s: of the broker, each direction; None: nothing was seen of it.
        coordinator: the coordinator's own, if measured.
    """

    hub_bytes_per_s: float | None = None
    coordinator: LinkSpeed | None = None


_SHARED = ("*", "links", "")
"""Under which the store keeps them; no device has that name."""


@dataclass(frozen=True)
class Measured:
    """Result of a measurement.

    Attributes:
        profiles: of each device.
        failed: why the others have none.
        links: shared ones.
    """

    profiles: dict[str, DeviceProfile]
    failed: dict[str, str]
    links: SharedLinks


@dataclass
class _Run:
    """What is known of the profile workers of one measurement."""

    todo: frozenset[str]
    connections: dict[str, str] = field(default_factory=dict)
    """device: the connection of the worker that waits for what to do"""
    failed: dict[str, str] = field(default_factory=dict)
    done: dict[str, DeviceProfile] = field(default_factory=dict)
    parts: dict[str, dict[int, str]] = field(default_factory=dict)

    def open(self) -> set[str]:
        """Devices that are neither done nor failed."""
        return set(self.todo) - set(self.done) - set(self.failed)

    def ready(self) -> set[str]:
        """Devices whose worker waits for what to do."""
        return self.open() & set(self.connections)

    def waiting(self) -> int:
        """Number of devices whose worker has not said anything yet."""
        return len(self.open() - set(self.connections))

    def give_up(self, why: str) -> None:
        """Leave out every device that is not done."""
        for device in self.open():
            self.failed[device] = why

    def take(self, news: _News, say: Say) -> bool:
        """Note what was said; False if it means nothing here."""
        device = news.device
        if device not in self.open():
            return False
        known = self.connections.get(device)
        if news.state == "loading" and known is None:
            self.connections[device] = news.connection
        elif news.state == "lost" and news.connection and news.connection != known:
            return True  # the late will of a worker that this one has replaced
        elif news.state in ("failed", "lost") or (news.state == "exited" and known is not None):
            self.failed[device] = news.reason or f"its profile worker is {news.state}"
        elif news.part is not None:
            have = self.parts.setdefault(device, {})
            have[news.part.part] = news.part.text
            if len(have) == news.part.parts:
                self.done[device] = DeviceProfile.from_text("".join(have[i] for i in sorted(have)))
                say("profiled", f"{device}: {self.done[device].describe()}")
        return True


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
        self, spec: JobSpec, imports: Imports, say: Say, cancelled: Callable[[], bool], known: bool = False
    ) -> Measured:
        """Return the profile of each device, why the others have none, and the links that all share.

        Once ``cancelled`` says so, what was measured until then is returned; with ``known`` only what was measured
        before.

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
            if not todo or known:
                say("profiled", f"{len(done)} devices are known already")
                return Measured(self._with_link(done), {}, self._shared())
            say("profiling", f"measuring {len(imports.model.layers)} layers on {', '.join(sorted(todo))}")
            run = self._run(bundle, todo, say, cancelled)
            for name, profile in run.done.items():
                self._store.put_profile(name, key, _backends(todo[name]), profile.to_text())
            return Measured(self._with_link(done | run.done), run.failed, self._shared())
        finally:
            self._forget(self)

    def _shared(self) -> SharedLinks:
        """What was last measured of the links that all share, and what the settings say instead."""
        kept = self._store.get_profile(*_SHARED)
        links = SharedLinks() if kept is None else SharedLinks.model_validate_json(kept)
        if (own := self._settings.broker_bytes_per_s) is not None:
            links = links.model_copy(update={"hub_bytes_per_s": own})
        return links

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

    def _run(self, bundle: bytes, todo: dict[str, Device], say: Say, cancelled: Callable[[], bool]) -> _Run:
        link = self._open_link(self._job)
        link.set_generation(1)
        run = _Run(frozenset(todo))
        try:
            for device in todo:
                self._command(device, self._ask("profile"))
            self._until(lambda: run.waiting() == 0, run, say, cancelled)
            if not cancelled() and run.ready():
                self._measure_links(link, run, say)
                for device in run.ready():
                    link.send(device, Tag(Kind.PROGRAM, 1), Tensor.of_bytes(bundle))
            self._until(lambda: run.open() == set(), run, say, cancelled)
            return run
        finally:
            for device in todo:
                self._command(device, self._ask("stop"))
            link.close()

    def _until(self, reached: Callable[[], bool], run: _Run, say: Say, cancelled: Callable[[], bool]) -> None:
        """Take news until something is reached; devices that stay silent are left out."""
        last = time.monotonic()
        while not reached() and not cancelled():
            try:
                news = self._news.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() - last > SILENT_S:
                    run.give_up("its measurement gave no sign of life")
                continue
            if run.take(news, say):
                last = time.monotonic()

    def _measure_links(self, link: TensorLink, run: _Run, say: Say) -> None:
        def gone() -> Collection[str]:
            while not self._news.empty():
                run.take(self._news.get_nowait(), say)
            return run.failed

        devices = sorted(run.ready())
        links = measure_links(link, devices, MonotonicClock(), gone)
        for device in devices:
            if device not in links.devices and device not in run.failed:
                run.failed[device] = "its link to the broker could not be measured"
        if len(links.devices) > 1:
            shared = SharedLinks(hub_bytes_per_s=links.hub_bytes_per_s, coordinator=links.coordinator)
            self._store.put_profile(*_SHARED, shared.model_dump_json())
            if shared.hub_bytes_per_s is not None:
                say("profiled", f"the broker carries {shared.hub_bytes_per_s / 1e6:.0f} MB/s for all together")

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
    bundle: dict[str, object] = {
        "batches": batches(spec),
        "layers": layers,
        "optimizer": spec.optimizer.model_dump(),
        "programs": [p.decode() for p in programs],
    }
    if len(layers) > 1:
        lo, hi = cheapest_run(imports.model.layers)
        bundle["run"] = {
            "program": imports.model.stage(lo, hi).shape_only().to_bytes().decode(),
            "lo": lo,
            "hi": hi,
        }
    return json.dumps(bundle, separators=(",", ":")).encode()


def cheapest_run(layers: Sequence[LayerInfo]) -> tuple[int, int]:
    """The run of some layers that needs the least memory: a device that holds one layer should hold it too.

    Measured as one beside the sum of its layers, it tells what running a layer apart costs.
    """
    length = min(RUN_LAYERS, len(layers))

    def needs(lo: int) -> int:
        return sum(4 * x.parameter_bytes + 32 * x.activation_bytes for x in layers[lo : lo + length])

    lo = min(range(len(layers) - length + 1), key=needs)
    return lo, lo + length
