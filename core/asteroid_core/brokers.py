"""Starts a broker on this machine for the demo and for tests: mosquitto if it is installed, else iotcore's rumqttd.

For loopback only and without logins; a real broker is configured with the files in broker_config/.
"""

from __future__ import annotations

import getpass
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asteroid_core.errors import BrokerError, InputError

Kind = Literal["auto", "mosquitto", "rumqttd"]

HOST = "127.0.0.1"
START_S = 15.0
STOP_S = 5.0

_MOSQUITTO = """listener {port} {host}
allow_anonymous true
set_tcp_nodelay true
max_queued_bytes 67108864
user {user}
"""
_RUMQTTD = """id = 0
[router]
id = 0
max_connections = 1010
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v5.1]
name = "v5-1"
listen = "{host}:{port}"
next_connection_delay_ms = 1
[v5.1.connections]
connection_timeout_ms = 60000
max_payload_size = 4194304
max_inflight_count = 100
dynamic_filters = true
"""
_RUN_RUMQTTD = "import sys; from iotcore import IotCoreBroker; IotCoreBroker(config_path=sys.argv[1]).run_forever()"


@dataclass(frozen=True)
class LocalBroker:
    """A broker process on this machine.

    Attributes:
        kind: ``mosquitto`` or ``rumqttd``.
        host: loopback address.
        port: TCP port.
        pid: of the process.
        log: what it wrote.
    """

    kind: str
    host: str
    port: int
    pid: int
    log: Path


def find_mosquitto() -> str | None:
    """Path of mosquitto; on Debian it lies in /usr/sbin, which is not on a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def has_rumqttd() -> bool:
    """Whether the embedded broker (extra ``broker``) is installed."""
    return importlib.util.find_spec("iotcore") is not None


def mosquitto_config(host: str, port: int) -> str:
    """Configuration of a mosquitto that anybody who reaches it may use."""
    return _MOSQUITTO.format(host=host, port=port, user=getpass.getuser())


def rumqttd_command(directory: Path, port: int) -> list[str]:
    """Write the embedded broker's configuration and return the command that runs it."""
    config = directory / "rumqttd.toml"
    config.write_text(_RUMQTTD.format(host=HOST, port=port))
    return [sys.executable, "-c", _RUN_RUMQTTD, str(config)]


@contextmanager
def start_broker(directory: Path, kind: Kind = "auto", port: int = 0) -> Iterator[LocalBroker]:
    """Run a broker until the block ends.

    Args:
        directory: takes its configuration and log.
        kind: which one; ``auto`` prefers mosquitto.
        port: TCP port on loopback; 0 takes a free one.

    Raises:
        InputError: none is installed, or the port is in use.
        BrokerError: it does not start.
    """
    mosquitto = find_mosquitto()
    if kind == "auto":
        kind = "mosquitto" if mosquitto else "rumqttd"
    if (kind == "mosquitto" and mosquitto is None) or (kind == "rumqttd" and not has_rumqttd()):
        raise InputError(
            f"There is no {kind} on this machine.", "Install one: apt install mosquitto, or pip install iotcore."
        )
    port = _port(port)
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "mosquitto":
        assert mosquitto is not None
        config = directory / "mosquitto.conf"
        config.write_text(mosquitto_config(HOST, port))
        command = [mosquitto, "-c", str(config)]
    else:
        command = rumqttd_command(directory, port)
    log = directory / f"{kind}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, port, kind, log)
        yield LocalBroker(kind, HOST, port, process.pid, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(wanted: int) -> int:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, wanted))
        except OSError as error:
            raise InputError(
                f"Port {wanted} of {HOST} cannot be used: {error.strerror}.",
                "Choose another port, or stop what uses it.",
            ) from None
        return int(sock.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, kind: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise BrokerError(
                f"{kind} ended at once with code {process.returncode}: {' '.join(last)}", f"Look at {log}."
            )
        try:
            socket.create_connection((HOST, port), timeout=0.2).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise BrokerError(f"{kind} did not open port {port} within {START_S:.0f} s.", f"Look at {log}.")
