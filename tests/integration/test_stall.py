"""A worker whose consumer stalls in the middle of a job, with mosquitto's default limits: nothing is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from tests.support import brokers, cluster, jobs

from asteroid_agent.backend.base import Backend, SampleKeys
from asteroid_core.link.tensors import open_tensors
from asteroid_core.wire.tensor import Tensor

STALL_S = float(os.environ.get("ASTEROID_STALL", "4"))
"""`make slow` stalls for ten seconds."""
SLACK_BYTES = 64 << 20
"""Memory that the broker may take beyond what it has at the start."""


class Stalling:
    """A backend that hangs once, in the forward of its 20th micro-batch; everything else is the real one."""

    def __init__(self, inner: Backend) -> None:
        self._inner, self._left = inner, 20

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(self, micro: int, inputs: Sequence[Tensor], *, train: bool, samples: SampleKeys | None) -> list[Tensor]:
        """Hang once, then compute."""
        self._left -= 1
        if self._left == 0:
            time.sleep(STALL_S)  # the stall itself is what is tested
        return self._inner.forward(micro, inputs, train=train, samples=samples)


@pytest.mark.mosquitto
def test_a_stalled_consumer_loses_nothing_and_the_broker_stays_small(own_mosquitto: brokers.RunningBroker) -> None:
    spec = jobs.job(
        "cnn",
        data={"options": {"size": 32}},
        train={"rounds": 12, "batch": 128, "dtype": "float32", "validate_every": 100},
    )
    imports = jobs.imported(spec)
    plan = jobs.plan(imports, "a:16 | b:16 | c:16")
    wanted = cluster.run(imports, plan).state

    before = own_mosquitto.resident()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak.append(own_mosquitto.resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        outcome = cluster.run(
            imports,
            plan,
            open_link=lambda name: open_tensors(own_mosquitto.settings, "test", name),
            around=lambda device, backend: Stalling(backend) if device == "b" else backend,  # type: ignore[arg-type, return-value]
        )
    finally:
        done.set()
        watcher.join()
    assert all(np.array_equal(outcome.state[name], wanted[name]) for name in wanted)
    print(f"broker: {before / 1e6:.1f} MB before, {max(peak) / 1e6:.1f} MB at most")
    assert max(peak) - before < SLACK_BYTES
