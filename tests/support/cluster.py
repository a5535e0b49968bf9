"""Runs a plan with the real stage runners, tensor links and feeder in one process, over the in-process broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from asteroid_agent.backend import open_backend
from asteroid_agent.backend.base import Backend
from asteroid_agent.worker.pulse import Pulse
from asteroid_agent.worker.runner import StageRunner, group_name
from asteroid_coordinator.importing import Imports
from asteroid_core.clock import MonotonicClock
from asteroid_core.feeding import Feeder
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.base import Broker
from asteroid_core.link.memory import MemoryBroker, MemoryTransport
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Plan
from asteroid_core.program import StageProgram
from asteroid_core.rounds import passes
from asteroid_core.wire.credit import Flow
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.messages import Assignment, Report

Arrays = dict[str, npt.NDArray[np.generic]]


class NoSnapshots:
    """Keeps nothing."""

    def due(self, rounds: int) -> bool:
        """Never."""
        return False

    def room(self) -> bool:
        """Always."""
        return True

    def take(self, rounds: int) -> None:
        """Not asked."""

    def serve(self, received: Received) -> bool:
        """Nobody asks."""
        return False


class Given(Exception):
    """Another worker has failed; this one gives up too."""


@dataclass
class Outcome:
    """What a run left behind.

    Attributes:
        state: weights and buffers under the user's names.
        reports: of all workers.
        errors: of all threads.
        copies: state of each device, to compare replicas.
    """

    state: Arrays
    reports: list[Report] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    copies: dict[str, Arrays] = field(default_factory=dict)

    def losses(self) -> list[float]:
        """Loss of each training round."""
        rounds: dict[int, float] = {}
        for report in self.reports:
            if report.kind == "round" and report.loss is not None:
                rounds[report.round] = rounds.get(report.round, 0.0) + report.loss
        return [rounds[number] for number in sorted(rounds)]


def assignment(imports: Imports, plan: Plan, device: str) -> Assignment:
    """What a device is told."""
    spec = imports.spec
    return Assignment(
        job=spec.name,
        agent=device,
        plan=plan,
        stage=plan.stage_of(device),
        train=spec.train,
        optimizer=spec.optimizer,
        program_sha256="",
        program_bytes=0,
        start_round=0,
        rounds=imports.rounds,
        samples=imports.samples,
        validation=imports.validation,
        checkpoint_every=1_000_000,
        data_owner=COORDINATOR,
    )


def run(
    imports: Imports,
    plan: Plan,
    *,
    open_link: Callable[[str], TensorLink] | None = None,
    flow: Flow | None = None,
    start: int = 0,
    begin: Arrays | None = None,
    around: Callable[[str, Backend], Backend] = lambda _, backend: backend,
) -> Outcome:
    """Train all rounds of a job under a plan.

    Args:
        imports: the job.
        plan: who does what.
        open_link: connects a device; None: over a broker in this process.
        flow: credit settings.
        start: completed rounds.
        begin: state after them, optimizer included; None: the initial one.
        around: may wrap the backend of a device.
    """
    memory = MemoryBroker()
    outcome = Outcome({})
    failed = threading.Event()

    def in_memory(name: str) -> TensorLink:
        transport = MemoryTransport(memory, name)
        return TensorLink(transport, Broker("memory"), imports.spec.name, name, flow=flow, chunk_bytes=1 << 16).open()

    links = {name: (open_link or in_memory)(name) for name in (*plan.devices, COORDINATOR)}
    for name, link in links.items():
        groups = [] if name == COORDINATOR else plan.reduction_groups(name)
        link.set_generation(plan.generation, [group_name(plan.stage_of(name), g) for g, _ in groups])
    state = dict(begin if begin is not None else imports.model.all_state())

    def control() -> None:
        if failed.is_set():
            raise Given

    def work(device: str) -> None:
        try:
            stage = plan.stages[plan.stage_of(device)]
            program = StageProgram.from_bytes(imports.model.stage(stage.lo, stage.hi).to_bytes())
            names = imports.model.state_names(stage.lo, stage.hi)
            own = {k: np.array(v) for k, v in state.items() if k in names or k.startswith("opt/")}
            backend = around(device, open_backend("torch", program, own, imports.spec.optimizer, 1.0))
            runner = StageRunner(
                assignment(imports, plan, device).model_copy(update={"start_round": start}),
                program,
                backend,
                links[device],
                control=control,
                report=outcome.reports.append,
                keeps=NoSnapshots(),
                clock=MonotonicClock(),
                resident_mb=lambda: None,
                pulse=Pulse(),
            )
            runner.run()
            outcome.copies[device] = backend.state()
        except Given:
            return
        except BaseException as error:
            outcome.errors.append(error)
            failed.set()

    steps = passes(imports.round_plan(plan), start, imports.validation, imports.spec.train.validate_every)

    def feed_failed(error: Exception) -> None:
        outcome.errors.append(error)
        failed.set()

    feeder = Feeder(links[COORDINATOR], imports.feed_plan(plan), plan, steps, feed_failed)
    threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in plan.devices]
    for thread in (feeder, *threads):
        thread.start()
    for thread in threads:
        thread.join(240)
    alive = [thread for thread in threads if thread.is_alive()]
    failed.set()
    feeder.halt()
    feeder.join(5)
    for thread in alive:
        thread.join(5)
    for link in links.values():
        link.close()
    if outcome.errors:
        raise outcome.errors[0]
    if alive:
        raise AssertionError(f"{len(alive)} workers did not finish")
    for stage in plan.stages:
        outcome.state.update({k: v for k, v in outcome.copies[stage.leader].items() if not k.startswith("opt/")})
    return outcome
