"""A link's speed is found from what a broker does with chunks, and the broker's from all devices at once."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from asteroid_coordinator.linkspeeds import measure_links
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.base import CHUNK_BYTES
from asteroid_core.link.probe import ASK_ALONE, ASK_TOGETHER, alone, together
from asteroid_core.wire.inbox import Received
from asteroid_core.wire.tensor import Kind, Tag, Tensor


class Loop:
    """A link whose tensors come back after as long as a broker that stores each chunk takes; it is its own clock."""

    def __init__(self, bytes_per_s: float, message_s: float) -> None:
        self.bytes_per_s, self.message_s = bytes_per_s, message_s
        self.time, self.up = 0.0, 0.0
        self.flying: deque[tuple[float, Received]] = deque()

    def now(self) -> float:
        return self.time

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        self.up = max(self.up, self.time) + tensor.nbytes / self.bytes_per_s
        back = self.up + min(tensor.nbytes, CHUNK_BYTES) / self.bytes_per_s + self.message_s
        self.flying.append((back, Received(dst, "", tag, tensor, 0)))

    def receive(self, timeout: float | None = None) -> Received | None:
        if not self.flying:
            self.time += timeout or 0.0
            return None
        back, received = self.flying.popleft()
        self.time = max(self.time, back)
        return received

    def release(self, received: Received) -> None:
        """Nothing is limited here."""


@pytest.mark.parametrize("bytes_per_s", [3e6, 12e6, 120e6])
@pytest.mark.parametrize("message_s", [0.0, 0.002])
def test_the_speed_of_a_link_is_not_mistaken_by_the_chunk_that_waits(bytes_per_s: float, message_s: float) -> None:
    loop = Loop(bytes_per_s, message_s)
    speed = alone(loop, "pi", 1, loop, lambda: None)
    assert speed.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)
    assert speed.message_s == pytest.approx(message_s, abs=1e-4)


def test_a_very_slow_link_is_given_up_on_in_time() -> None:
    loop = Loop(2e5, 0.0)
    assert alone(loop, "pi", 1, loop, lambda: None).bytes_per_s == pytest.approx(2e5)
    assert loop.time < 15


def test_while_everybody_sends_the_bytes_that_come_back_are_counted() -> None:
    loop = Loop(10e6, 0.001)
    assert together(loop, "pi", 1, loop, lambda: None) == pytest.approx(10e6, rel=0.05)
    assert not loop.flying


class Devices(Loop):
    """The coordinator's link to devices that answer at once."""

    def __init__(self, own: dict[str, float], shared: dict[str, float]) -> None:
        super().__init__(1e9, 0.0)
        self.own, self.shared = own, shared

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        if dst == COORDINATOR:
            super().send(dst, tag, tensor)
            return
        speeds = self.shared if tag.micro == ASK_TOGETHER else self.own
        if dst in speeds:
            answer = Tensor.of_numpy(np.array([speeds[dst], 0.001]))
            self.flying.append((self.time, Received(dst, "", Tag(Kind.PROBE, 1, micro=tag.micro), answer, 0)))


def test_a_broker_that_holds_everybody_up_is_noticed() -> None:
    narrow = Devices({"a": 10e6, "b": 10e6}, {"a": 5e6, "b": 6e6})
    links = measure_links(narrow, ["a", "b"], narrow, set)
    assert {name: speed.bytes_per_s for name, speed in links.devices.items()} == {"a": 10e6, "b": 10e6}
    assert links.hub_bytes_per_s == 11e6
    wide = Devices({"a": 10e6, "b": 10e6}, {"a": 10e6, "b": 9e6})
    assert measure_links(wide, ["a", "b"], wide, set).hub_bytes_per_s is None


def test_a_device_that_does_not_answer_is_left_out_and_nonsense_is_no_answer() -> None:
    devices = Devices({"a": 10e6, "b": float("nan")}, {})
    links = measure_links(devices, ["a", "b", "silent"], devices, set)
    assert list(links.devices) == ["a"]
    assert links.hub_bytes_per_s is None
    lost = Devices({"a": 10e6}, {})
    before = lost.time
    assert list(measure_links(lost, ["a", "lost"], lost, lambda: {"lost"}).devices) == ["a"]
    assert lost.time - before < 1.0
    assert ASK_ALONE != ASK_TOGETHER
