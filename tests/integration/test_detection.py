"""Real agents, a real broker: a worker that hangs is lost, one that is killed says how, one that pauses goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tests.support import jobs, reference
from tests.support.site import Site, environment, site, wait_until

from asteroid_core.detector import EXIT_WORST_S, HEARTBEAT_WORST_S, WORD_S
from asteroid_core.link.base import Broker, Message, Subscription
from asteroid_core.link.control import open_control
from asteroid_core.spec import load_job
from asteroid_core.wire.messages import Event, JobState, decode
from asteroid_core.wire.topics import build

JOB = """
[model]
name = "mlp"

[data]
source = "digits"
validation = 0.1

[train]
rounds = 200
batch = 16
micro_batch = 8
dtype = "float64"
validate_every = 100000

[optimizer]
kind = "sgd"
lr = 0.02
momentum = 0.9
clip_norm = 1.0

[plan]
fixed = "0-3 pi-a:8 | 4-6 pi-b:8 | 7-9 pi-c:8"
all_devices = true

[checkpoint]
every = 100000

[replication]
every = 5
"""
DEVICES = ("pi-a", "pi-b", "pi-c")


class Run:
    """A job on three agents, in the background, and what its topics say."""

    def __init__(self, three: Site, name: str) -> None:
        self.site, self.job = three, three.job(name, JOB)
        self.state = JobState(job=name, phase="new")
        self._events: list[Event] = []
        host, port = three.address.rsplit(":", 1)
        self._link = open_control(Broker(host, int(port)))
        self._link.subscribe(Subscription(build("job_state", job=name)), Subscription(build("job_events", job=name)))
        self._log = three.directory / f"{name}.log"
        with self._log.open("w") as err:
            self.process = subprocess.Popen(
                three.command("train", self.job, "--json"),
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment(),
            )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._link.close()

    def _read(self) -> None:
        while not self._link.events.empty():
            message = self._link.events.get()
            if isinstance(message, Message) and message.payload:
                if message.topic.endswith("/state"):
                    self.state = decode(JobState, message.payload)
                else:
                    self._events.append(decode(Event, message.payload))

    def until_durable(self) -> None:
        def durable() -> bool:
            self._read()
            return self.state.durable > 0

        wait_until(durable, f"nothing durable: {self._log}", 120)

    def worker(self, device: str) -> psutil.Process:
        """The one worker process of a device."""
        (worker,) = psutil.Process(self.site.agents[device].pid).children()
        return worker

    def end(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self._log.read_text()
        return dict(json.loads(out))

    def events(self, kind: str) -> list[Event]:
        self._read()
        return [event for event in self._events if event.kind == kind]

    def weights_are_right(self, result: dict[str, Any]) -> None:
        imports = jobs.imported(load_job(self.job))
        wanted: dict[str, np.ndarray] = reference.train(imports, jobs.plan(imports, "a:8"))[0]
        assert max(reference.distance(dict(load_file(result["model_file"])), wanted)) < 1e-9


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Agents that have measured their layers once, so that later jobs begin sooner."""
    with site(tmp_path_factory.mktemp("site"), DEVICES) as made:
        yield made


@contextmanager
def running(three: Site, name: str) -> Iterator[Run]:
    """A job that has a durable round; nothing of it is left afterwards."""
    run = Run(three, name)
    try:
        run.until_durable()
        yield run
    finally:
        run.close()


def test_a_worker_that_hangs_is_lost_by_its_heartbeat_and_ended_by_its_supervisor(three: Site) -> None:
    with running(three, "hangs") as run:
        worker = run.worker("pi-b")
        worker.send_signal(signal.SIGSTOP)
        at = time.time()
        try:
            wait_until(lambda: bool(run.events("device-lost")), "it is not found", HEARTBEAT_WORST_S + 5)
            wait_until(lambda: not worker.is_running(), "the supervisor does not end the worker that hangs", 15)
            print(f"ended after {time.time() - at:.2f} s")
            result = run.end()
            (lost,) = run.events("device-lost")
            assert lost.data["device"] == "pi-b"
            assert lost.data["source"] == "heartbeat"
            assert "no sign of life came for" in lost.text
            assert lost.at - at < HEARTBEAT_WORST_S + 1.0
            print(f"found after {lost.at - at:.2f} s: {lost.text}")
            assert (result["phase"], result["generation"]) == ("done", 2)
            assert "pi-b" not in result["plan"]
            run.weights_are_right(result)
            assert run.site.agents["pi-b"].poll() is None
        finally:
            if worker.is_running():
                worker.kill()


def test_a_worker_that_is_killed_is_lost_with_the_signal_as_its_reason(three: Site) -> None:
    with running(three, "killed") as run:
        at = time.time()
        run.worker("pi-b").send_signal(signal.SIGKILL)
        result = run.end()
        (lost,) = run.events("device-lost")
        assert lost.data["source"] == "exit"
        assert "killed by SIGKILL" in lost.text
        assert lost.at - at < EXIT_WORST_S + WORD_S
        print(f"found after {lost.at - at:.3f} s: {lost.text}")
        assert result["generation"] == 2
        run.weights_are_right(result)


def test_a_worker_that_pauses_is_not_lost(three: Site) -> None:
    with running(three, "pauses") as run:
        worker = run.worker("pi-b")
        worker.send_signal(signal.SIGSTOP)
        try:
            time.sleep(1.5)  # the pause is what is tested
        finally:
            worker.send_signal(signal.SIGCONT)
        result = run.end()
        assert not run.events("device-lost")
        assert not run.events("stuck")
        assert (result["phase"], result["generation"]) == ("done", 1)
        run.weights_are_right(result)
