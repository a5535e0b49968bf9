"""Feeds a job: sends each micro-batch's inputs to the first stage and its targets to the last one.

Runs where the data lies: at the coordinator, or in the worker of the device that owns them. What is sent is a pure
function of the job and the round (``data.feeder``), so after a replay the same samples come again; this thread only
sends it, no faster than the receivers give credit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from asteroid_core.data.feeder import FeedPlan, MicroBatch
from asteroid_core.plan import Plan
from asteroid_core.rounds import Pass
from asteroid_core.routing import clip
from asteroid_core.wire.tensor import Kind, Tag, Tensor

AHEAD_BYTES = 16 << 20
"""Unacknowledged bytes after which the feeder waits: enough to hide a round trip, little enough for a small device."""


class FeedPort(Protocol):
    """What the feeder needs of a link."""

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for one receiver."""

    def backlog(self, dst: str | None = None, kind: Kind | None = None) -> int:
        """Bytes that are not acknowledged yet."""


class Feeder(threading.Thread):
    """Feeds the given passes of one generation, then ends.

    Args:
        link: where tensors go.
        feed: which samples each micro-batch has.
        plan: who gets which rows.
        steps: the passes, in order.
        failed: called once with the exception if the data cannot be read.
    """

    def __init__(
        self,
        link: FeedPort,
        feed: FeedPlan,
        plan: Plan,
        steps: Iterable[Pass],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__(name=f"feeder-{plan.generation}", daemon=True)
        self._link, self._feed, self._plan, self._steps, self._failed = link, feed, plan, steps, failed
        self._halt = threading.Event()

    def halt(self) -> None:
        """Stop feeding; returns at once."""
        self._halt.set()

    def run(self) -> None:
        """Feed until the passes end or ``halt`` is called."""
        try:
            for step in self._steps:
                for micro in range(self._feed.micros(step.phase)):
                    if self._halt.is_set():
                        return
                    batch = self._feed.micro_batch(step.phase, step.round, micro)
                    while self._link.backlog() > AHEAD_BYTES:
                        if self._halt.wait(0.005):
                            return
                    self._send(step, micro, batch)
        except Exception as error:  # whatever a user's data set raises ends the job with its sentence
            self._failed(error)

    def _send(self, step: Pass, micro: int, batch: MicroBatch) -> None:
        rows = len(batch.targets)
        first, last = self._plan.stages[0], self._plan.stages[-1]

        def tag(kind: Kind, index: int) -> Tag:
            return Tag(kind, self._plan.generation, step.round, micro, index, step.phase)

        for device, (lo, hi) in clip(first, rows).items():
            for index, array in enumerate(batch.inputs):
                self._link.send(device, tag(Kind.FEED, index), Tensor.of_numpy(np.ascontiguousarray(array[lo:hi])))
        normaliser = Tensor.of_numpy(np.array([batch.normaliser]))
        for device, (lo, hi) in clip(last, rows).items():
            self._link.send(device, tag(Kind.TARGET, 0), Tensor.of_numpy(np.ascontiguousarray(batch.targets[lo:hi])))
            self._link.send(device, tag(Kind.TARGET, 1), normaliser)
