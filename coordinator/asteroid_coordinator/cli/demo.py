"""``asteroid demo``: a broker and four agents on this machine, a real training, one agent killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.devices import Roster
from asteroid_coordinator.cli.gantt import gantt_text
from asteroid_coordinator.cli.jobview import JobView
from asteroid_coordinator.cli.render import plan_sentence, plan_table, result_table
from asteroid_coordinator.cli.session import on_broker, running_coordinator
from asteroid_coordinator.cli.text import duration, percent
from asteroid_coordinator.cli.train import follow, submit
from asteroid_coordinator.client import DEVICE_TOPICS
from asteroid_coordinator.simulator.engine import simulate
from asteroid_core.brokers import start_broker
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.spec import JobSpec, parse_job
from asteroid_core.wire.messages import PlanSummary

EXAMPLES = (
    ("asteroid demo", "two minutes, nothing to configure"),
    ("asteroid demo --keep asteroid-demo", "keep logs, checkpoints and the model there"),
    ("asteroid demo --no-kill --epochs 2", "without the accident, shorter"),
)

WANTED = 0.95
"""Validation accuracy that the demo has to reach."""
MIDDLE = 0.45
"""Part of the rounds after which an agent is killed."""
BORN_S = 30.0
STOP_S = 10.0
AGENTS: tuple[tuple[str, int], ...] = (("mini-pc", 2000), ("jetson", 1500), ("pi-5", 1200), ("pi-4", 1000))
"""Names and megabytes that they lend; all of them are processes of this machine, one core each."""

BrokerKind = Literal["auto", "mosquitto", "rumqttd"]


@dataclass
class _Agent:
    """An agent process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class _Accident:
    """Kills one agent once the job is in its middle.

    Args:
        ui: where to say so.
        agents: the processes.
    """

    def __init__(self, ui: Ui, agents: Sequence[_Agent]) -> None:
        self._ui, self._agents = ui, {agent.name: agent for agent in agents}
        self.victim = ""
        self.first: PlanSummary | None = None
        self.measured_s: float | None = None

    def look(self, view: JobView) -> None:
        """Look at the job; called whenever it may have moved."""
        if self.victim or view.plan is None or not view.rounds or view.completed < MIDDLE * view.rounds:
            return
        self.first, self.measured_s = view.plan, view.measured_s
        self.victim = view.plan.plan.devices[-1]
        agent = self._agents[self.victim]
        # Its worker dies with it: the kernel is told so when the worker starts.
        agent.process.send_signal(signal.SIGKILL)
        self._ui.say(f"--- killed agent {self.victim} (SIGKILL, process {agent.process.pid}) at round {view.completed}")


def demo(
    ui: Ui,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep everything there.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the digits.")] = 12,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill an agent in the middle.")] = True,
    broker_kind: Annotated[BrokerKind, typer.Option("--with", help="Which broker to start.")] = "auto",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Its port; 0 takes a free one.")] = 0,
) -> None:
    """Show it working on this machine: broker, four agents, one network, one accident.

    A convolutional network learns handwritten digits across four agent processes. In the middle, one of them is
    killed; the others go on from the last durable round. Exit code 1 if it does not reach 95 % accuracy.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        directory = _directory(keep, stack)
        broker = stack.enter_context(start_broker(directory / "broker", broker_kind, port))
        ui.say(f"Broker: {broker.kind} on {broker.host}:{broker.port}. Look on with:")
        ui.say(f"  mosquitto_sub -p {broker.port} -v -t 'asteroid/#'")
        settings = ui.settings.model_copy(
            update={"host": broker.host, "port": broker.port, "username": None, "password_file": None, "ca": None,
                    "tls": False, "state_dir": directory / "state"}
        )  # fmt: skip
        ui = replace(ui, settings=settings)
        agents = stack.enter_context(_agents(directory / "logs", f"{broker.host}:{broker.port}"))
        _wait_for(ui, agents)
        ui.say(f"Agents: {', '.join(agent.name for agent in agents)}, one core each.")
        accident = _Accident(ui, agents)
        with running_coordinator(ui) as session:
            name = submit(session, "submit", _job(epochs))
            view = follow(ui, session, name, look=accident.look if kill else None)
        model = _keep_model(view, keep)
        if view.state is not None:
            view.state = view.state.model_copy(update={"model_file": str(model or "")})
        facts = _facts(view, accident, model, time.monotonic() - started)
        if ui.json:
            ui.data(facts)
        else:
            _report(ui, view, accident, facts)
    if (view.best_accuracy or 0.0) < WANTED:
        raise AsteroidError(
            f"The demo reached only {percent(view.best_accuracy or 0.0)} validation accuracy, not {WANTED:.0%}.",
            "Look at its logs: asteroid demo --keep DIR",
        )


def _job(epochs: int) -> JobSpec:
    raw: dict[str, Any] = {
        "name": "demo",
        "model": {"name": "cnn"},
        "data": {"source": "digits", "validation": 0.2},
        "train": {"epochs": epochs, "batch": 64, "micro_batch": 16},
        "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "schedule": "cosine"},
        # For a network this small one device would be as fast; the demo is there to show a pipeline.
        "plan": {"all_devices": True, "stages": 2},
    }
    return parse_job(raw, "the demo's job")


@contextmanager
def _agents(logs: Path, broker: str) -> Iterator[list[_Agent]]:
    """Run the four agents until the block ends."""
    logs.mkdir(parents=True, exist_ok=True)
    started: list[_Agent] = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ASTEROID_")}
    try:
        for name, memory in AGENTS:
            command = [sys.executable, "-m", "asteroid_agent.main", "--broker", broker, "--name", name]
            command += ["--cores", "1", "--memory-mb", str(memory), "--config", os.devnull, "--log-format", "text"]
            log = logs / f"{name}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
                )
            started.append(_Agent(name, process, log))
        yield started
    finally:
        _end(started)


def _end(agents: Sequence[_Agent]) -> None:
    """Ask all agents to end; kill those that do not, also when Ctrl-C says that waiting takes too long."""
    for agent in agents:
        agent.process.terminate()
    try:
        deadline = time.monotonic() + STOP_S
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(deadline - time.monotonic(), 0.1))
    finally:
        for agent in agents:
            agent.process.kill()  # nothing, if it has ended
            agent.process.wait()


def _wait_for(ui: Ui, agents: Sequence[_Agent]) -> None:
    """Wait until every agent has said its birth.

    Raises:
        AsteroidError: one has ended, or does not show up.
    """
    roster, deadline = Roster(), time.monotonic() + BORN_S
    with on_broker(ui) as client:
        client.subscribe(*DEVICE_TOPICS)
        while len(roster.registry.present()) < len(agents):
            for agent in agents:
                if agent.process.poll() is not None:
                    last = agent.log.read_text(errors="replace").strip().splitlines()[-1:]
                    raise AsteroidError(f"The agent {agent.name} ended at once: {' '.join(last)}")
            if time.monotonic() > deadline:
                raise AsteroidError("Not all agents of the demo showed up on the broker.", "Run `asteroid doctor`.")
            for heard in client.follow(0.25):
                roster.take(heard)


def _directory(keep: Path | None, stack: ExitStack) -> Path:
    """Where everything lies; without --keep it goes with the demo.

    Raises:
        InputError: --keep cannot be written.
    """
    if keep is None:
        return Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="asteroid-demo-", ignore_cleanup_errors=True))
        )
    try:
        (keep / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{keep} cannot be used: {error.strerror}.", "Give another directory with --keep.") from None
    if not os.access(keep, os.W_OK):
        raise InputError(f"{keep} is not writable for this user.", "Give another directory with --keep.")
    return keep.resolve()


def _keep_model(view: JobView, keep: Path | None) -> Path | None:
    """Where the model file lies when the demo is over; without --keep it is saved from the temporary directory."""
    if view.state is None or not view.state.model_file:
        return None
    source = Path(view.state.model_file)
    if keep is not None:
        return source
    # A name of its own: a fixed one in a directory of everybody could be a link that somebody else has put there.
    handle, name = tempfile.mkstemp(prefix="asteroid-demo-", suffix=".safetensors")
    with os.fdopen(handle, "wb") as out, source.open("rb") as model:
        shutil.copyfileobj(model, out)
    return Path(name)


def _facts(view: JobView, accident: _Accident, model: Path | None, seconds: float) -> dict[str, Any]:
    first = accident.first
    return {
        **view.summary(),
        "model_file": str(model) if model else "",
        "killed": accident.victim,
        "plan_before": first.plan.describe() if first else None,
        "predicted_round_before_s": first.plan.predicted_s if first else None,
        "measured_round_before_s": accident.measured_s,
        "events": [event.text for event in view.events],
        "seconds": round(seconds, 1),
    }


def _report(ui: Ui, view: JobView, accident: _Accident, facts: dict[str, Any]) -> None:
    """Print what happened."""
    for title, summary in (("Plan before the accident", accident.first), ("Plan at the end", view.plan)):
        if summary is not None and summary.costs is not None:
            ui.show(Text(f"\n{title}", style="bold"), plan_table(summary), Text(plan_sentence(summary)))
            ui.show(gantt_text(summary.plan, simulate(summary.plan, summary.costs), ui.out.width))
    ui.show(Text("\nWhat came out", style="bold"), result_table(view))
    if accident.victim:
        before = duration(facts["predicted_round_before_s"]), duration(facts["measured_round_before_s"])
        ui.show(f"Before the accident a round was predicted to take {before[0]}, measured {before[1]}.")
        ui.show(f"Killed: {accident.victim}. Since then: {', '.join(view.plan.plan.devices) if view.plan else '-'}.")
    ui.show("A prediction takes each agent to have its core to itself; here all share this machine's.")
    ui.show(f"The model: {facts['model_file']}")
    ui.show(f"All of it took {duration(facts['seconds'])}.")
