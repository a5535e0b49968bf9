"""A broker, agents as processes, and the command line as a person uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asteroid_core.brokers import Kind, start_broker

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(str(ROOT / part) for part in ("core", "agent", "coordinator"))


def environment() -> dict[str, str]:
    """Of every process of a site: nothing of the person's own settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ASTEROID_", "XDG_"))}
    return {**kept, "PYTHONPATH": PATHS, "HOME": "/nonexistent", "NO_COLOR": "1", "COLUMNS": "120"}


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one JSON document."""
        return json.loads(self.out)


@dataclass
class Site:
    """One broker and what runs on it.

    Attributes:
        directory: of logs, job files and state.
        address: of the broker.
        broker_pid: its process.
        agents: processes by device name.
    """

    directory: Path
    address: str
    broker_pid: int
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_agent(self, name: str, memory_mb: int = 2000, *more: str) -> None:
        """Start an agent and wait until its birth is in its log."""
        log = self.directory / f"{name}.log"
        command = [sys.executable, "-m", "asteroid_agent.main", "--config", os.devnull, "--broker", self.address]
        command += ["--name", name, "--cores", "1", "--memory-mb", str(memory_mb), *more]
        with log.open("wb") as out:
            self.agents[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(), start_new_session=True
            )
        wait_until(lambda: "connected to the broker" in log.read_text(), f"agent {name} is not born: {log}")

    def kill_agent(self, name: str) -> None:
        """SIGKILL an agent; its worker dies with it."""
        process = self.agents.pop(name)
        process.kill()
        process.wait()

    def command(self, *words: str | Path) -> list[str]:
        """A command line of ``asteroid`` for this site."""
        options = ["--broker", self.address, "--state-dir", str(self.directory / "state")]
        return [sys.executable, "-m", "asteroid_coordinator.cli.main", *map(str, words), *options]

    def run(self, *words: str | Path, timeout: float = 180.0) -> Done:
        """Run one command to its end."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, env=environment(), timeout=timeout, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Run a command in the background; it is killed if it still runs at the end."""
        process = subprocess.Popen(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def job(self, name: str, text: str) -> Path:
        """Write a job file."""
        path = self.directory / f"{name}.toml"
        path.write_text(text)
        return path


def wait_until(true: Callable[[], bool], otherwise: str, timeout: float = 60.0) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        time.sleep(0.05)


@contextmanager
def site(directory: Path, agents: Sequence[str] = (), kind: Kind = "auto") -> Iterator[Site]:
    """Run a broker and agents until the block ends."""
    with start_broker(directory / "broker", kind) as broker:
        made = Site(directory, f"{broker.host}:{broker.port}", broker.pid)
        try:
            for name in agents:
                made.start_agent(name)
            yield made
        finally:
            for process in made.agents.values():
                process.terminate()
            for process in made.agents.values():
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
