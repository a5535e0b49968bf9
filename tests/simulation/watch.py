"""Looks on and says what must never happen: the invariants of pipeline replay, checked at every step of every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.model import Task, difference, undisturbed
from tests.simulation.world import World

from asteroid_agent.worker.runner import StageRunner
from asteroid_coordinator.job.state import Checkpointed, Job, JobEvent, Kept, Submitted, TakenOver
from asteroid_core.held import Held, holders
from asteroid_core.plan import Plan
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.messages import Assignment

TOLERANCE = 1e-9

EXPECTED = ("No device is ", "The disk is full")
"""Reasons for which a job may fail; a person resumes it then."""

Epoch = tuple[str, int]
"""A generation, and the coordinator's start that made it."""


class Watch:
    """See the module's header.

    Args:
        world: is told of violations.
        task: what is trained, and so what the weights must be after each round.
    """

    def __init__(self, world: World, task: Task) -> None:
        self.world = world
        self._wanted = undisturbed(task)
        self._held: dict[tuple[Epoch, int], set[str]] = {}
        """devices that held all their reduced gradients of a round"""
        self._stepped: set[tuple[object, int, int]] = set()
        self._completed: dict[Epoch, int] = {}
        self._saved = 0
        self._lost_since_durable: set[str] = set()
        self.at_step: dict[int, list[Callable[[], object]]] = {}
        """what happens as a device takes the so many-th step of the run"""
        self.rebooted: set[str] = set()
        """devices whose worker has died, perhaps without the coordinator's knowledge"""

    # Workers

    def holds(self, runner: WatchedRunner) -> None:
        """A device is about to vote."""
        backend, plan, me = runner.backend, runner.plan, runner.me
        groups = {g if g == 0 else plan.ties[g - 1].name for g, _ in plan.reduction_groups(me)}
        if backend.backwards == plan.micro_count and groups <= backend.reduced:
            self._held.setdefault((runner.epoch, runner.number), set()).add(me)
        self.world.say(f"{me} votes for round {runner.number} of generation {plan.generation}")

    def steps(self, runner: WatchedRunner, number: int, generation: int) -> None:
        """A device is about to step a round."""
        me, plan = runner.me, runner.plan
        missing = set(plan.devices) - self._held.get((runner.epoch, number), set())
        if missing:
            self.world.violate(
                f"{me} steps round {number} of generation {plan.generation}, of which {', '.join(sorted(missing))} "
                "did not hold the reduced gradients"
            )
        key = (runner.owner, generation, number)
        if key in self._stepped:
            self.world.violate(f"{me} steps round {number} twice in generation {generation}")
        self._stepped.add(key)
        for do in self.at_step.pop(len(self._stepped), ()):
            do()
        self.world.say(f"{me} steps round {number} of generation {plan.generation}")

    def state(self, runner: WatchedRunner, rounds: int) -> None:
        """A device's working state is that of so many rounds."""
        self.weights(f"{runner.me} in generation {runner.plan.generation}", runner.backend.state(), rounds)

    def weights(self, who: str, state: Any, rounds: int) -> None:
        """Some state is that of so many rounds: so it must equal the undisturbed run's."""
        far, where = difference(state, self._wanted[rounds])
        if not far <= TOLERANCE:
            self.world.violate(f"{who}: {where} is off by {far:.1e} after {rounds} rounds")

    def received(self, me: str, generation: int, received: Received, plan: Plan | None) -> None:
        """A tensor has come out of a link."""
        if received.tag.generation != generation:
            self.world.violate(
                f"{me} takes a {received.tag.kind.value} of generation {received.tag.generation} "
                f"from {received.src} in generation {generation}"
            )

    def failed(self, device: str, error: Exception) -> None:
        """A worker ends with a sentence; one that is not a sentence is a bug."""
        self.world.say(f"the worker of {device} fails: {error}")
        if any(str(error).startswith(f"{name} does not have the state") for name in self.rebooted):
            return  # it was back so soon that the coordinator could not know that its snapshots were gone
        if device in self.rebooted and "to go on with a stage that it does not hold" in str(error):
            return  # the same with its working state
        self.world.violate(f"the worker of {device} fails with {type(error).__name__}: {error}", error)

    def broken(self, reason: str) -> None:
        """The job has failed."""
        self.world.say(f"the job fails: {reason}")
        if not reason.startswith(EXPECTED):
            self.world.violate(f"the job fails: {reason}")

    # The coordinator

    def job(self, session: str, old: Job, event: JobEvent, new: Job, kept: Callable[[Job], list[set[str]]]) -> None:
        """The job has moved."""
        if isinstance(event, Submitted):
            self._lost_since_durable.clear()
            return
        if isinstance(event, TakenOver) and event.job.plan is not None:
            self._lost_since_durable |= set(event.job.plan.devices) - event.alive
        epoch = (session, new.generation)
        if old.generation == new.generation and old.phase == "running":
            if new.completed < old.completed:
                self.world.violate(f"completed goes back from {old.completed} to {new.completed} in one generation")
            if new.completed > old.completed:
                before = self._completed.get(epoch, -1)
                if old.completed < before:
                    self.world.violate(f"round {old.completed} is completed twice in generation {new.generation}")
                self._completed[epoch] = new.completed
                for number in range(old.completed, new.completed):
                    self._all_stepped(epoch, number, new)
        if new.saved < old.saved:
            self.world.violate(f"saved goes back from {old.saved} to {new.saved}")
        gone = {name for name, _ in new.excluded} - {name for name, _ in old.excluded}
        if new.plan is not None and old.plan is not None and new.plan is not old.plan:
            gone |= set(old.plan.devices) - set(new.plan.devices)
        self._lost_since_durable |= gone
        if (new.durable_generation, new.durable) != (old.durable_generation, old.durable):
            if new.durable < old.durable and len(self._lost_since_durable) < 2:
                self.world.violate(
                    f"durable goes back from {old.durable} to {new.durable}, only "
                    f"{', '.join(self._lost_since_durable) or 'nobody'} was lost since"
                )
            if isinstance(event, Kept | Checkpointed):
                self._lost_since_durable = set()
        if isinstance(event, Kept) and new.durable_generation == new.generation and new.durable != old.durable:
            short = [layer for layer, devices in enumerate(kept(new)) if len(devices) < 2]
            if short:
                self.world.violate(f"round {new.durable} is called durable, but layer {short[0]} is not kept twice")

    def _all_stepped(self, epoch: Epoch, number: int, job: Job) -> None:
        assert job.plan is not None
        missing = set(job.plan.devices) - self._held.get((epoch, number), set())
        if missing:
            self.world.violate(f"round {number} is completed, but {', '.join(sorted(missing))} never had its gradients")


class WatchedRunner(StageRunner):
    """The product's runner, looked at before and after what must not go wrong."""

    watch: Watch
    owner: Any

    def __init__(self, assignment: Assignment, *args: Any, **kwargs: Any) -> None:
        super().__init__(assignment, *args, **kwargs)
        self.epoch: Epoch = (assignment.session, assignment.plan.generation)
        self.watch.state(self, self.rounds)

    @property
    def backend(self) -> Any:
        return self._backend

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def me(self) -> str:
        return self._me

    @property
    def number(self) -> int:
        """The round that runs."""
        return self._key.round

    def catch_up(self, start: int, scale: float | None) -> None:
        before = self.rounds
        super().catch_up(start, scale)
        if start > before:
            self.watch.steps(self, before, self.plan.generation)
        self.watch.state(self, start)

    def _vote(self) -> None:
        self.watch.holds(self)
        super()._vote()

    def _step(self) -> None:
        self.watch.steps(self, self.number, self.plan.generation)
        super()._step()
        self.watch.state(self, self.rounds)


def really_kept(keepers: dict[str, Any], died: set[str], job: Job) -> list[set[str]]:
    """Which devices keep each layer's state after the durable round of a job, by what is in their memory.

    What those have kept whose worker has died counts as long as the coordinator does not know better.
    """
    assert job.plan is not None
    held = [item for item in job.held if item.device in died and item.generation == job.durable_generation]
    for device, keeper in keepers.items():
        held += [
            Held(device=device, generation=s.generation, rounds=s.rounds, lo=s.lo, hi=s.hi)
            for s in keeper.snapshots()
            if s.generation == job.durable_generation
        ]
    return holders(held, job.durable, job.plan.layers)
