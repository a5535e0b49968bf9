"""Start mosquitto and rumqttd on free loopback ports with a configuration of their own; stopped by handle."""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from asteroid_core.brokers import find_mosquitto, has_rumqttd, rumqttd_command
from asteroid_core.link.base import Broker

MOSQUITTO = find_mosquitto()
HAS_IOTCORE = has_rumqttd()


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("the broker did not open its port")


@dataclass
class RunningBroker:
    """A broker process and how to start it again on the same port."""

    command: list[str]
    port: int
    process: subprocess.Popen[bytes] | None = None
    host: str = "127.0.0.1"

    @property
    def settings(self) -> Broker:
        """How a link reaches it."""
        return Broker(self.host, self.port)

    def start(self) -> None:
        """Start (again)."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self.process)

    def stop(self, hard: bool = False) -> None:
        """End the process that ``start`` started."""
        if self.process is not None:
            if hard:
                self.process.kill()
            else:
                self.process.terminate()
            self.process.wait(10)
            self.process = None

    def resident(self) -> int:
        """Bytes of memory that the broker occupies."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")


@contextmanager
def mosquitto(directory: Path, *extra: str, nodelay: bool = True, anonymous: bool = True) -> Iterator[RunningBroker]:
    """A mosquitto with its default limits and whatever ``extra`` lines of configuration say."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    lines = [f"listener {port} 127.0.0.1", f"allow_anonymous {'true' if anonymous else 'false'}", *extra]
    lines.append(f"user {getpass.getuser()}")  # else it gives up root and cannot read what lies in a private directory
    if nodelay:
        lines.append("set_tcp_nodelay true")
    config = directory / "mosquitto.conf"
    config.write_text("\n".join(lines) + "\n")
    broker = RunningBroker([MOSQUITTO, "-c", str(config)], port)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def rumqttd(directory: Path) -> Iterator[RunningBroker]:
    """The rumqttd of the iotcore wheel with an MQTT 5 listener."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    broker = RunningBroker(rumqttd_command(directory, port), port)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
