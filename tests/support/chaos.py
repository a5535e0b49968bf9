"""Kills parts of a small cluster at random moments of a job, brings them back, and looks at what comes out.

What dies when follows from the seed; the moments themselves are the machine's, so a seed repeats the kind of trouble,
not its every interleaving.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.support.site import Site, environment, wait_until

from asteroid_coordinator.store import Store
from asteroid_core.brokers import LocalBroker, start_broker
from asteroid_core.errors import AsteroidError, InputError

VICTIMS = ("worker", "supervisor", "coordinator", "broker", "hang")
"""``hang``: a worker is stopped (SIGSTOP) and stays so."""
DEVICES = ("pi-a", "pi-b", "pi-c", "pi-d")
LIMIT_S = 240.0
"""For a whole job, with all its trouble."""


@dataclass
class Chaos:
    """A cluster whose parts may die.

    Attributes:
        directory: of everything.
        seed: of the trouble.
        victims: kinds of trouble to choose from.
    """

    directory: Path
    seed: int = 0
    victims: tuple[str, ...] = VICTIMS
    diary: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _stopped: list[psutil.Process] = field(default_factory=list)

    def __enter__(self) -> Chaos:
        self.random = random.Random(self.seed)
        self._broker_stack = ExitStack()
        self._broker = self._start_broker(0)
        self.site = Site(self.directory, f"{self._broker.host}:{self._broker.port}", self._broker.pid)
        self._coordinator: subprocess.Popen[bytes] | None = None
        self.start_coordinator()
        for name in DEVICES:
            self.site.start_agent(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._stopped:
            if process.is_running():
                process.kill()
        for agent in self.site.agents.values():
            agent.kill()
            agent.wait()
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.wait()
        self._broker_stack.close()

    def note(self, text: str) -> None:
        """Write down what was done, for who reads a failure."""
        self.diary.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _start_broker(self, port: int) -> LocalBroker:
        while True:
            try:
                return self._broker_stack.enter_context(start_broker(self.directory / "broker", "auto", port))
            except InputError:  # the dead broker's port is not free yet
                time.sleep(0.1)

    def start_coordinator(self) -> None:
        """Run ``asteroid coordinator`` until it is killed."""
        log = self.directory / "coordinator.log"
        with log.open("ab") as out:
            out.write(b"--- started\n")
            self._coordinator = subprocess.Popen(
                self.site.command("coordinator"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(),
                start_new_session=True,
            )

    def wait_for_coordinator(self) -> None:
        """Wait until it serves."""
        log = self.directory / "coordinator.log"
        wait_until(lambda: "Coordinator online" in log.read_text().split("--- started\n")[-1], str(log))

    # Trouble

    def strike(self) -> None:
        """Do one thing."""
        what = self.random.choice(self.victims)
        if what in ("worker", "hang", "supervisor"):
            name = self.random.choice(DEVICES)
            self._strike_device(what, name)
        elif what == "coordinator" and self._coordinator is not None:
            self.note("the coordinator is killed")
            self._coordinator.kill()
            self._coordinator.wait()
            time.sleep(self.random.uniform(0.0, 2.0))
            self.start_coordinator()
        elif what == "broker":
            self.note("the broker is killed")
            os.kill(self._broker.pid, signal.SIGKILL)
            port = self._broker.port
            self._broker_stack.close()
            time.sleep(self.random.uniform(0.0, 2.0))
            self._broker = self._start_broker(port)

    def _strike_device(self, what: str, name: str) -> None:
        agent = self.site.agents[name]
        if what == "supervisor":
            self.note(f"the supervisor of {name} is killed")
            self.site.kill_agent(name)
            time.sleep(self.random.uniform(0.0, 2.0))
            self.site.start_agent(name)
            return
        workers = psutil.Process(agent.pid).children()
        if not workers:
            self.note(f"{name} has no worker to strike")
            return
        try:
            if what == "worker":
                self.note(f"the worker of {name} is killed")
                workers[0].kill()
            else:
                self.note(f"the worker of {name} is stopped")
                workers[0].suspend()
                self._stopped.append(workers[0])
        except psutil.NoSuchProcess:
            self.note("it had ended already")

    # The job

    def state(self, name: str) -> dict[str, Any]:
        """Where a job is, from the store."""
        try:
            with Store(self.directory / "state", read_only=True) as store:
                return store.state(name)
        except InputError:
            return {}

    def events(self, name: str) -> list[dict[str, Any]]:
        """A job's story, from the store."""
        with Store(self.directory / "state", read_only=True) as store:
            return [event.body for event in store.events(name)]

    def begin(self, seed: int) -> None:
        """The trouble of another seed, on the same cluster."""
        self.seed, self.random = seed, random.Random(seed)
        self.diary.clear()
        self._began = time.monotonic()

    def train(self, job: Path, strikes: int, pause: tuple[float, float] = (1.0, 5.0)) -> dict[str, Any]:
        """Train a job while things die, so many times; return its last state.

        Raises:
            AssertionError: it does not end in time; the diary says what was done.
        """
        self.wait_for_coordinator()
        wait_until(lambda: all("connected" in (self.directory / f"{d}.log").read_text() for d in DEVICES), "agents")
        name = job.stem
        done = self.site.run("train", job, "--detach")
        assert done.code == 0, done.err
        deadline = time.monotonic() + LIMIT_S
        wait_until(lambda: self.state(name).get("phase") == "running", f"{name} does not begin", 60)
        for _ in range(strikes):
            time.sleep(self.random.uniform(*pause))
            if self.state(name).get("phase") == "done":
                break
            self.strike()
        while (state := self.state(name)).get("phase") != "done":
            if state.get("phase") in ("failed", "stopped"):
                self.note(f"{state['phase']}: {state.get('reason')}; it is resumed")
                self._resume(name)
            assert time.monotonic() < deadline, f"{name} does not end: {state}\n{self.report(name)}"
            time.sleep(0.2)
        return state

    def _resume(self, name: str) -> None:
        self.wait_for_coordinator()
        done = self.site.run("resume", name, "--detach")
        self.note(done.err.strip().splitlines()[-1] if done.code else "resumed")
        time.sleep(1.0)

    def report(self, name: str) -> str:
        """What was done, and what the job says of it."""
        story = [f"{event['kind']}: {event['text']}" for event in self.events(name)]
        return "\n".join([f"seed {self.seed}", *self.diary, "", *story[-60:]])


def surviving(events: list[dict[str, Any]], rounds: int) -> Counter[int]:
    """How often each round is part of the history that led to the final weights.

    The rounds of a generation survive up to where the next one began.
    """
    starts = [int(e["data"]["round"]) for e in events if e["kind"] == "running"]
    count: Counter[int] = Counter()
    for start, end in zip(starts, [*starts[1:], rounds], strict=True):
        for round_ in [r for r in count if r >= start]:
            del count[round_]
        count.update(range(start, max(start, end)))
    return count


__all__ = ["DEVICES", "LIMIT_S", "VICTIMS", "AsteroidError", "Chaos", "json", "surviving"]
