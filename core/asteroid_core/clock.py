"""Time as an argument."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time in seconds; only differences mean anything."""

    def now(self) -> float:
        """Seconds since some fixed moment."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()


class ProcessClock:
    """Processor time of this process, all threads."""

    def now(self) -> float:
        """Seconds that its threads have computed."""
        return time.process_time()
