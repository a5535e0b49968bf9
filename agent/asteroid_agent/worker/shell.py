"""What a worker's session needs of the process around it."""

from __future__ import annotations

from typing import Protocol

from asteroid_core.wire.messages import Loading, WorkerState


class WorkerShell(Protocol):
    """What a session needs of the process around it."""

    def tell(self, state: WorkerState, generation: int, reason: str, loading: Loading | None = None) -> None:
        """Publish the worker's retained state."""

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a control message."""

    def messages(self, timeout: float) -> list[tuple[str, bytes]]:
        """Return the control messages that have come, waiting for the first one for ``timeout`` seconds."""
