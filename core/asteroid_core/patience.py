"""How long to wait before saying that something is late: follows what earlier waits took. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

FLOOR_S = 10.0
"""Below this a wait is never late: a retransmission over a bad link or a busy processor takes seconds."""
FACTOR = 4.0
"""A round that takes three times as long as any lately is slow (a throttled processor does that), not late."""
FADE = 0.9
"""The longest round is forgotten by a tenth each round, so that one hiccup does not count for ever."""


@dataclass(frozen=True)
class Patience:
    """Seconds that a wait may take.

    Attributes:
        floor_s: at least so long.
        factor: times the longest lately.
        predicted_s: stands for the longest until something was measured, e.g. the plan's round time.
        fade: what remains of the longest after each measurement; 1 forgets nothing.
        longest_s: the longest lately; None before anything was measured.
    """

    floor_s: float = FLOOR_S
    factor: float = FACTOR
    predicted_s: float = 0.0
    fade: float = FADE
    longest_s: float | None = None

    @property
    def seconds(self) -> float:
        """How long to wait."""
        return max(self.floor_s, self.factor * (self.predicted_s if self.longest_s is None else self.longest_s))

    def after(self, seconds: float) -> Patience:
        """Patience after something that took so long, and ended."""
        return replace(self, longest_s=max(seconds, self.fade * (self.longest_s or 0.0)))
