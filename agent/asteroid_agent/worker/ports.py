"""What the runner needs of a link, so that tests can hand in one without MQTT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from asteroid_core.link.base import Received

from asteroid_core.wire.tensor import Tag, Tensor

__all__ = ["Received", "TensorPort"]


class TensorPort(Protocol):
    """Tensors in and out; see ``asteroid_core.link`` for the real one."""

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for one receiver; its bytes must not change until it is acknowledged."""

    def multicast(self, stage: str, members: Sequence[str], tag: Tag, tensor: Tensor) -> None:
        """Queue a tensor for several receivers."""

    def receive(self, timeout: float) -> Received | None:
        """Return the next whole tensor, or None after ``timeout`` seconds."""

    def release(self, received: Received) -> None:
        """Say that a tensor has been consumed, so that its sender may send more."""
