"""The coordinator's end of a job's tensor plane: hears checkpoints' parts and questions, feeds samples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from asteroid_coordinator.stock import Question, StatePart
from asteroid_core.feeding import Feeder
from asteroid_core.link.tensors import TensorLink
from asteroid_core.plan import Plan
from asteroid_core.rounds import passes
from asteroid_core.wire.tensor import ANSWER, Kind

if TYPE_CHECKING:
    from asteroid_coordinator.importing import Imports

POLL_S = 0.5
"""The receiving thread looks so often whether it should end."""


class Line:
    """One job's link and the threads that use it.

    Args:
        link: open.
        heard: takes what workers send.
    """

    def __init__(self, link: TensorLink, heard: Callable[[StatePart | Question], None]) -> None:
        self.link = link
        self._heard = heard
        self._closing = threading.Event()
        self._feeder: Feeder | None = None
        self._receiver = threading.Thread(target=self._receive, name="receive", daemon=True)
        self._receiver.start()

    def _receive(self) -> None:
        while not self._closing.is_set():
            received = self.link.receive(POLL_S)
            if received is None:
                continue
            tag, data = received.tag, received.tensor.data
            if tag.kind is Kind.STATE:
                self._heard(StatePart(received.src, tag.generation, tag.round, data, tag.index == ANSWER))
            elif tag.kind is Kind.ASK:
                self._heard(Question(received.src, tag, data))
            self.link.release(received)

    def feed(self, imports: Imports, plan: Plan, start_round: int, failed: Callable[[Exception], None]) -> None:
        """Feed samples from a round on, in a thread."""
        every = imports.spec.train.validate_every
        steps = passes(imports.round_plan(plan), start_round, imports.validation, every)
        self._feeder = Feeder(self.link, imports.feed_plan(plan), plan, steps, failed)
        self._feeder.start()

    def stop_feeding(self) -> None:
        """Feed no more; returns at once."""
        if self._feeder is not None:
            self._feeder.halt()

    def close(self) -> None:
        """End the threads and the link."""
        self.stop_feeding()
        self._closing.set()
        self._receiver.join(2.0)
        self.link.close()
