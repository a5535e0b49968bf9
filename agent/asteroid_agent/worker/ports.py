"""What the worker needs of a link, so that tests can hand in one without MQTT."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from asteroid_core.wire.inbox import Received
from asteroid_core.wire.tensor import Kind, Tag, Tensor

__all__ = ["Keeps", "Received", "TensorPort"]


class Keeps(Protocol):
    """What a stage runner asks about snapshots; ``worker.snapshots.Snapshots`` is the real one."""

    def due(self, rounds: int) -> bool:
        """Whether a snapshot follows ``rounds`` completed rounds."""

    def room(self) -> bool:
        """Whether another one may be taken already."""

    def take(self, rounds: int) -> None:
        """Take it."""

    def serve(self, received: Received) -> bool:
        """Take a question or a copy of another device's snapshot; returns whether it was one."""


class TensorPort(Protocol):
    """Tensors in and out; ``asteroid_core.link.tensors.TensorLink`` is the real one."""

    def set_generation(
        self, generation: int, stages: Collection[str] = (), senders: Collection[str] | None = None
    ) -> None:
        """Enter a generation; what is under way in older ones is forgotten."""

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for one receiver; its bytes must not change until it is acknowledged."""

    def multicast(self, stage: str, members: Collection[str], tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for several receivers."""

    def receive(self, timeout: float | None = None) -> Received | None:
        """Return the next whole tensor, or None after ``timeout`` seconds."""

    def release(self, received: Received) -> None:
        """Say that a tensor has been taken, so that its sender may send more."""

    def backlog(self, dst: str | None = None, kind: Kind | None = None) -> int:
        """Bytes that are not acknowledged yet."""
