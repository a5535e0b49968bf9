"""Figures of a round from the workers' reports: loss, accuracy, samples per second, busy shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from asteroid_core.plan import Plan
from asteroid_core.wire.messages import Metrics, Report


@dataclass
class Scoreboard:
    """Collects the reports of the present generation until a round (or validation) has all of them."""

    job: str
    rounds: int
    plan: Plan
    _open: dict[tuple[str, int], dict[str, Report]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """duration of each whole round, as the slowest worker saw it"""

    def add(self, report: Report) -> Metrics | None:
        """Take a report; returns the round's figures once everybody has spoken."""
        if report.generation != self.plan.generation or report.agent not in self.plan.devices:
            return None
        key = (report.kind, report.round)
        have = self._open.setdefault(key, {})
        have[report.agent] = report
        if len(have) < len(self.plan.devices):
            return None
        del self._open[key]
        return self._metrics(report.kind == "validation", report.round, list(have.values()))

    def _metrics(self, validation: bool, number: int, reports: Sequence[Report]) -> Metrics:
        seconds = max(r.seconds for r in reports)
        if not validation:
            self.seconds.append(seconds)
        losses = [r.loss for r in reports if r.loss is not None]
        counted = sum(r.counted or 0.0 for r in reports)
        correct = [r.correct for r in reports if r.correct is not None]
        recent = sorted(self.seconds[-20:])
        typical = recent[len(recent) // 2] if recent else seconds
        return Metrics(
            job=self.job,
            round=number,
            rounds=self.rounds,
            kind="validation" if validation else "train",
            loss=sum(losses) if losses else None,
            accuracy=sum(correct) / counted if correct and counted else None,
            samples_per_s=self.plan.batch / seconds if seconds > 0 and not validation else None,
            seconds=seconds,
            eta_s=(self.rounds - number - 1) * typical,
            busy={r.agent: min(1.0, r.busy_s / r.seconds) if r.seconds > 0 else 0.0 for r in reports},
        )

    def median_round_s(self) -> float | None:
        """Median duration of the rounds so far, without the first (which warms up)."""
        rest = sorted(self.seconds[1:] or self.seconds)
        return rest[len(rest) // 2] if rest else None
