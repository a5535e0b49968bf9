"""The emulated cluster: devices with slow links and few processors, a broker, a coordinator; torn down in any case.

    with Testbed([DeviceSpec("pi-a", mbit=100, cpu=0.4), DeviceSpec("pi-b", mbit=25, cpu=0.2)], broker_mbit=100) as bed:
        bed.start_broker()
        bed.start_agent("pi-a", memory_mb=1000)

Root only. Everything is named after the process that made it, so that several can live side by side and what a killed
one left behind can be found (``remove_leftovers``).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from tests.testbed.network import Host, Network, TestbedError, namespaces, processes_in, run
from tests.testbed.quota import ROOT, Quota, groups, remove

from asteroid_core.brokers import find_mosquitto, mosquitto_config

BROKER, COORDINATOR = "broker", "coordinator"
PORT = 1883
STOP_S = 5.0
START_S = 15.0
PREFIX = "asteroid-"
_OURS = re.compile(rf"{PREFIX}(\d+)-\d+-")
_numbers = itertools.count()


@dataclass(frozen=True)
class DeviceSpec:
    """One device.

    Attributes:
        name: of the device and of its agent.
        mbit: speed of its link, each direction, in Mbit/s; None: not limited.
        cpu: processors that it has; None: not limited.
        memory_mb: memory that its processes may use together; None: not limited.
    """

    name: str
    mbit: float | None = 100.0
    cpu: float | None = None
    memory_mb: int | None = None


def unavailable() -> str | None:
    """Say in one sentence why there can be no testbed here; None if there can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "the emulated cluster needs root on Linux"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the emulated cluster needs {tool} (apt install iproute2)"
    if find_mosquitto() is None:
        return "the emulated cluster needs mosquitto (apt install mosquitto)"
    if not (ROOT / "cpu" / "cgroup.procs").is_file():
        return "the emulated cluster needs the cpu controller of cgroup version 1"
    name = f"{PREFIX}{os.getpid()}-try-"
    try:
        run("ip", "netns", "add", name)
        try:
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", "10mbit", "burst", "16000",
                "latency", "50ms")  # fmt: skip
        finally:
            run("ip", "netns", "del", name)
    except TestbedError as error:
        return f"the emulated cluster cannot be made: {error}"
    return None


class Testbed:
    """An emulated cluster; a context manager.

    Args:
        devices: of the cluster.
        broker_mbit: speed of the broker's link; None: not limited.
        coordinator_mbit: speed of the coordinator's link; None: not limited.
    """

    __test__ = False

    def __init__(
        self, devices: Sequence[DeviceSpec], broker_mbit: float | None = None, coordinator_mbit: float | None = None
    ) -> None:
        self.devices = {device.name: device for device in devices}
        self._mbit = {BROKER: broker_mbit, COORDINATOR: coordinator_mbit}
        self.prefix = f"{PREFIX}{os.getpid()}-{next(_numbers)}-"
        self.network = Network(self.prefix)
        self._quotas: dict[str, Quota] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._before: dict[int, object] = {}
        self.directory = Path()

    def __enter__(self) -> Testbed:
        self._catch_signals()
        self.directory = Path(tempfile.mkdtemp(prefix=self.prefix))
        try:
            self.network.open()
            for name, mbit in self._mbit.items():
                self.network.add(name, mbit)
            for name, device in self.devices.items():
                self.network.add(name, device.mbit)
                self._quotas[name] = Quota(self.prefix + name, device.cpu, device.memory_mb)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Broker, coordinator and devices by name."""
        return self.network.hosts

    @property
    def address(self) -> str:
        """``host:port`` of the broker."""
        return f"{self.hosts[BROKER].address}:{PORT}"

    # Processes

    def popen(self, host: str, command: Sequence[str], log: str = "") -> subprocess.Popen[bytes]:
        """Start a command on a host; its output goes to a file of the testbed's directory.

        Args:
            host: where.
            command: what.
            log: name of the file, without ``.log``; default: the host's.
        """
        path = self.log(log or host)
        with path.open("ab") as out:
            process = subprocess.Popen(
                self._inside(host, command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, host: str, command: Sequence[str], timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(self._inside(host, command), capture_output=True, text=True, timeout=timeout, check=False)

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """What this thread opens in the block, and threads that it starts there, use the host's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.hosts[host].namespace}") as there:
            _enter(libc, there.fileno())
            try:
                yield
            finally:
                _enter(libc, home.fileno())

    def kill(self, device: str) -> float:
        """SIGKILL every process of a host at once, as a power failure would; returns when, by the monotonic clock."""
        at = time.monotonic()
        _kill_all(self.hosts[device].namespace)
        return at

    def _inside(self, host: str, command: Sequence[str]) -> list[str]:
        quota = self._quotas.get(host)
        entering = "".join(f"echo $$ > {shlex.quote(str(file))} && " for file in (quota.files if quota else []))
        inner = shlex.join(["ip", "netns", "exec", self.hosts[host].namespace, *command])
        return ["sh", "-c", f"{entering}exec {inner}"]

    def log(self, name: str) -> Path:
        """File with the output of what was started under that name."""
        return self.directory / f"{name}.log"

    # What a cluster consists of

    def start_broker(self) -> subprocess.Popen[bytes]:
        """Run mosquitto on the broker's host and wait until it listens."""
        mosquitto = find_mosquitto()
        assert mosquitto is not None, "unavailable() says so"
        config = self.directory / "mosquitto.conf"
        config.write_text(mosquitto_config(self.hosts[BROKER].address, PORT))
        process = self.popen(BROKER, [mosquitto, "-c", str(config)])
        probe = f"import socket; socket.create_connection(('{self.hosts[BROKER].address}', {PORT}), 1).close()"
        deadline = time.monotonic() + START_S
        while self.run(COORDINATOR, [sys.executable, "-c", probe]).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"mosquitto does not listen: {self.log(BROKER).read_text()}")
            time.sleep(0.05)
        return process

    def start_agent(self, device: str, memory_mb: int = 2000, cores: float = 1.0) -> subprocess.Popen[bytes]:
        """Run an agent on a device."""
        command = [sys.executable, "-m", "asteroid_agent.main", "--broker", self.address, "--name", device]
        command += ["--cores", str(cores), "--memory-mb", str(memory_mb)]
        return self.popen(device, command)

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        """Run a coordinator on its host, with its state in the testbed's directory."""
        return self.popen(COORDINATOR, self.cli("coordinator"))

    def cli(self, *words: str) -> list[str]:
        """The command line ``asteroid`` with these words, for ``run`` and ``popen``."""
        state = self.directory / "state"
        return [
            sys.executable, "-m", "asteroid_coordinator.cli.main", *words, "--broker", self.address,
            "--state-dir", str(state),
        ]  # fmt: skip

    def cut(self, host: str) -> None:
        """Pull a host's cable."""
        self.network.cut(host)

    def mend(self, host: str) -> None:
        """Put it back."""
        self.network.mend(host)

    # The end

    def close(self) -> None:
        """End every process, then remove namespaces, cgroups and files."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for host in self.hosts.values():  # grandchildren that outlived their parents
            _kill_all(host.namespace)
        self.network.close()
        for quota in self._quotas.values():
            quota.close()
        self._quotas.clear()
        if self.directory != Path():
            shutil.rmtree(self.directory, ignore_errors=True)
        self._release_signals()

    def _catch_signals(self) -> None:
        """Leave through ``__exit__`` on SIGTERM too."""
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _leave)

    def _release_signals(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, 0):
        raise TestbedError(f"setns: {os.strerror(ctypes.get_errno())}")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _kill_all(namespace: str) -> None:
    deadline = time.monotonic() + STOP_S
    while (left := processes_in(namespace)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def remove_leftovers() -> list[str]:
    """Remove what testbeds of processes that are dead have left behind; return the names."""
    removed = []
    for namespace in namespaces():
        if _orphaned(namespace):
            _kill_all(namespace)
            run("ip", "netns", "del", namespace)
            removed.append(namespace)
    for group in groups(PREFIX):
        if _orphaned(group.name):
            remove(group)
            removed.append(group.name)
    return removed


def _orphaned(name: str) -> bool:
    found = _OURS.match(name)
    return found is not None and not Path(f"/proc/{found[1]}").exists()
