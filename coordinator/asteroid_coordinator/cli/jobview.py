"""What is known of one job: a fold of its messages, from which the live view and the summary are drawn. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from asteroid_core.plan import Plan
from asteroid_core.wire.messages import Event, JobPhase, JobState, Message, Metrics, PlanSummary

ENDED: frozenset[JobPhase] = frozenset({"done", "failed", "stopped"})
RECOVERED = "recovered"
"""Kind of the event in which the coordinator tells how a recovery went."""
_KEPT = 2000
"""Rounds whose times and losses are kept: enough for a median and a curve, and bounded."""


@dataclass
class JobView:
    """One job as its messages tell it.

    Attributes:
        job: its name.
        state: last state.
        plan: plan in force.
        train: last round.
        validation: last validation.
        best_accuracy: highest validation accuracy so far.
        losses: of the last rounds.
        seconds: round times of the plan in force, without the first round (it warms caches up).
        events: last lines of the story.
        recoveries: those that tell of a recovery that is over.
    """

    job: str
    state: JobState | None = None
    plan: PlanSummary | None = None
    train: Metrics | None = None
    validation: Metrics | None = None
    best_accuracy: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=200))
    recoveries: deque[Event] = field(default_factory=lambda: deque(maxlen=20))
    _fresh_plan: bool = True

    def take(self, message: Message) -> None:
        """Fold a message in; those of other kinds change nothing."""
        if isinstance(message, JobState):
            self.state = message
        elif isinstance(message, PlanSummary):
            if self.plan is None or self.plan.plan != message.plan:
                self.seconds.clear()
                self._fresh_plan = True
            self.plan = message
        elif isinstance(message, Event):
            if not any(e.seq == message.seq and e.at == message.at for e in self.events):
                self.events.append(message)
                if message.kind == RECOVERED:
                    self.recoveries.append(message)
        elif isinstance(message, Metrics):
            self._metrics(message)

    def _metrics(self, message: Metrics) -> None:
        if message.kind == "validation":
            self.validation = message
            if message.accuracy is not None:
                self.best_accuracy = max(message.accuracy, self.best_accuracy or 0.0)
            return
        self.train = message
        if message.loss is not None:
            self.losses.append(message.loss)
        if message.seconds is not None:
            if self._fresh_plan:
                self._fresh_plan = False
            else:
                self.seconds.append(message.seconds)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state is not None and self.state.phase in ENDED

    @property
    def completed(self) -> int:
        """Rounds that are behind us; metrics may be ahead of the state, and after a recovery the state is right."""
        return self.state.completed if self.state is not None else 0

    @property
    def rounds(self) -> int:
        """Rounds that there will be; 0 while unknown."""
        if self.state is not None and self.state.rounds:
            return self.state.rounds
        return self.train.rounds if self.train is not None else 0

    @property
    def predicted_s(self) -> float | None:
        """Predicted round time of the plan in force."""
        return self.plan.plan.predicted_s if self.plan is not None else None

    @property
    def measured_s(self) -> float | None:
        """Median round time under the plan in force."""
        return median(self.seconds) if self.seconds else None

    @property
    def stage_busy(self) -> tuple[float, ...]:
        """For each stage, the part of the last round that its devices computed (mean)."""
        if self.plan is None or self.train is None or not self.train.busy:
            return ()
        busy = self.train.busy
        return tuple(
            sum(busy.get(d, 0.0) for d in stage.devices) / len(stage.devices) for stage in self.plan.plan.stages
        )

    def summary(self) -> dict[str, Any]:
        """The result as one JSON object."""
        state = self.state
        plan: Plan | None = self.plan.plan if self.plan is not None else None
        return {
            "job": self.job,
            "phase": state.phase if state else None,
            "reason": state.reason if state else "",
            "remedy": state.remedy if state else "",
            "exit_code": state.exit_code if state else 0,
            "rounds": self.rounds,
            "completed": self.completed,
            "durable": state.durable if state else 0,
            "saved": state.saved if state else 0,
            "generation": state.generation if state else 0,
            "loss": self.train.loss if self.train else None,
            "validation_loss": self.validation.loss if self.validation else None,
            "accuracy": self.validation.accuracy if self.validation else None,
            "best_accuracy": self.best_accuracy,
            "samples_per_s": self.train.samples_per_s if self.train else None,
            "predicted_round_s": self.predicted_s,
            "measured_round_s": self.measured_s,
            "plan": plan.describe() if plan else None,
            "model_file": state.model_file if state else "",
            "recoveries": [event.data for event in self.recoveries],
        }
