"""What the benches of running jobs share: emulated clusters of like devices at 100 Mbit/s, jobs on them, their story.

Root only. The coordinator is a process of its own on its own host; a bench listens as any client does, from that host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from tests.testbed.cluster import COORDINATOR, PORT, DeviceSpec, Testbed

from asteroid_coordinator.cli.jobfile import read_job
from asteroid_coordinator.client import Client, Heard
from asteroid_coordinator.settings import Settings
from asteroid_core.wire.messages import AgentStatus, Event, JobState, Metrics, PlanSummary, WorkerStatus

MBIT = 100.0
BYTES_PER_S = MBIT * 1e6 / 8
"""Speed of every link, the broker's and the coordinator's among them: all that moves shares the broker's."""
PROCESSORS = 1.25
"""Processors of all devices together; the rest of two is left to broker and coordinator."""
START_S = 60.0
MODELS = ("mobilenet-v2", "bert-small")
_MODEL = {
    # The digits, enlarged: 64x64 pictures in three colours.
    "mobilenet-v2": ('source = "digits"\noptions = { size = 64, channels = 3 }', "", 16),
    # The digits as rows of 64 tokens, one a pixel; the vocabulary, and so the size, is BERT's own.
    "bert-small": ('source = "TOKENS"', "options = { vocabulary = 30522 }", 8),
}
_JOB = """
name = "{name}"
[model]
name = "{model}"
{options}
[data]
{data}
validation = 0.01
[train]
rounds = {rounds}
batch = {batch}
validate_every = 1000000
[optimizer]
kind = "sgd"
lr = 0.01
[plan]
layers = 20
{plan}
[checkpoint]
every = {checkpoint}
[replication]
{replication}
"""


class BenchError(Exception):
    """Something did not happen in time; names the logs' last words."""


@dataclass
class Told:
    """What a job has told so far.

    Attributes:
        events: with the monotonic time of their arrival.
        plans: in the order of their generations.
        seconds: of completed rounds, by metrics.
        steps: when the metrics of each round arrived.
        loaded: bytes of state that each device was given for the first plan.
    """

    state: JobState | None = None
    events: list[tuple[float, Event]] = field(default_factory=list)
    plans: list[PlanSummary] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    loaded: dict[str, int] = field(default_factory=dict)

    def event(self, kind: str) -> tuple[float, Event] | None:
        """The first event of a kind."""
        return next((pair for pair in self.events if pair[1].kind == kind), None)

    def reached(self, phase: str) -> bool:
        """Whether the job is in a phase."""
        return self.state is not None and self.state.phase == phase

    def take(self, heard: Heard) -> None:
        """Fold a message in."""
        message = heard.message
        if isinstance(message, JobState):
            self.state = message
        elif isinstance(message, Event):
            self.events.append((time.monotonic(), message))
        elif isinstance(message, PlanSummary):
            self.plans.append(message)
        elif isinstance(message, Metrics) and message.kind == "train" and message.seconds is not None:
            self.seconds.append(message.seconds)
            self.steps.append(time.monotonic())
        elif isinstance(message, WorkerStatus) and message.generation == 1 and message.loading is not None:
            self.loaded[message.agent] = message.loading.fetched_bytes


class Site:
    """A running cluster.

    Args:
        bed: with broker, agents and coordinator.
        client: listens from the coordinator's host.
    """

    def __init__(self, bed: Testbed, client: Client) -> None:
        self.bed, self._client = bed, client
        self._states: dict[str, str] = {}
        self._told: dict[str, Told] = {}
        self._number = 0

    def job_file(
        self, model: str, *, rounds: int, plan: str = "", replication: str = "", checkpoint: int = 1_000_000
    ) -> Path:
        """Write a job file; each has a name of its own.

        Args:
            model: of ``MODELS``.
            rounds: of the job.
            plan: lines of its section ``[plan]``.
            replication: lines of its section ``[replication]``.
            checkpoint: rounds between checkpoints.
        """
        data, options, batch = _MODEL[model]
        tokens = self.bed.directory / "tokens.npz"
        if not tokens.exists():
            raw = load_digits()
            np.savez(tokens, x=raw.data.astype(np.int64), y=raw.target.astype(np.int64))
        self._number += 1
        name = f"{model}-{self._number}"
        path = self.bed.directory / f"{name}.toml"
        path.write_text(
            _JOB.format(
                name=name,
                model=model,
                options=options,
                data=data.replace("TOKENS", str(tokens)),
                rounds=rounds,
                batch=batch,
                plan=plan,
                checkpoint=checkpoint,
                replication=replication,
            )
        )
        return path

    def submit(self, path: Path, verb: str = "submit") -> Told:
        """Hand a job to the coordinator."""
        spec = read_job(path)
        told = self._told[spec.name] = Told()
        self._client.watch(spec.name)
        self._client.subscribe("agent_worker", job=spec.name)
        self._client.request(verb, job=spec.name, spec=spec)
        return told

    def stop(self, path: Path) -> None:
        """Stop a job and wait for its end."""
        told = self._told[path.stem]
        self._client.request("stop", job=path.stem)
        self.until(told, partial(told.reached, "stopped"), "stopped", START_S)

    def until(self, told: Told, true: Callable[[], object], what: str, timeout: float) -> None:
        """Listen until something is so.

        Raises:
            BenchError: it does not become so, or the job fails.
        """
        deadline = time.monotonic() + timeout
        while not true():
            self._listen(0.5)
            if told.state is not None and told.state.phase == "failed":
                raise BenchError(f"the job failed: {told.state.reason}")
            if time.monotonic() > deadline:
                lines = [event.text for _, event in told.events]
                raise BenchError(f"not {what} within {timeout:.0f} s; it said: {lines[-3:]}")

    def _listen(self, seconds: float) -> None:
        for heard in self._client.follow(seconds):
            if isinstance(heard.message, AgentStatus):
                self._states[heard.message.agent] = heard.message.state
            elif told := self._told.get(heard.fields.get("job", "")):
                told.take(heard)
            return

    def start_agent(self, device: str) -> None:
        """Start a device's agent and wait for its birth."""
        self._states.pop(device, None)
        self.bed.start_agent(device)
        deadline = time.monotonic() + START_S
        while self._states.get(device) != "ready":
            self._listen(0.5)
            if time.monotonic() > deadline:
                raise BenchError(f"{device} was not born: {self.bed.log(device).read_text()[-500:]}")


def specs(agents: int) -> tuple[DeviceSpec, ...]:
    """Devices that share ``PROCESSORS`` evenly, at 100 Mbit/s each."""
    return tuple(DeviceSpec(f"pi-{number}", MBIT, round(PROCESSORS / agents, 3)) for number in range(1, agents + 1))


@contextmanager
def running(agents: int) -> Iterator[Site]:
    """Broker, agents and coordinator on an emulated cluster until the block ends."""
    with Testbed(specs(agents), broker_mbit=MBIT, coordinator_mbit=MBIT) as bed:
        bed.start_broker()
        bed.start_coordinator()
        host = bed.hosts["broker"].address
        client = Client(Settings(host=host, port=PORT))
        with bed.inside(COORDINATOR):
            client.connect()
        try:
            deadline = time.monotonic() + START_S
            while client.find_coordinator(1.0) is None:
                if time.monotonic() > deadline:
                    raise BenchError(f"no coordinator: {bed.log(COORDINATOR).read_text()[-500:]}")
            client.subscribe("agent_status")
            site = Site(bed, client)
            for device in bed.devices:
                site.start_agent(device)
            yield site
        finally:
            client.close()


def as_fixed(summary: PlanSummary) -> str:
    """A plan as the text of ``plan.fixed``."""
    return " | ".join(
        f"{s.lo}-{s.hi - 1} " + " ".join(f"{share.device}:{share.samples}" for share in s.shares)
        for s in summary.plan.stages
    )


def spread(values: Mapping[int, float] | list[float]) -> str:
    """``median (least .. most)``."""
    numbers = sorted(values.values() if isinstance(values, Mapping) else values)
    middle = float(np.median(numbers))
    return f"{middle:.2f} ({numbers[0]:.2f} .. {numbers[-1]:.2f})"
