"""A link and a shell for a worker's session, without MQTT."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from asteroid_core.wire.inbox import Received
from asteroid_core.wire.messages import Loading
from asteroid_core.wire.tensor import Kind, Tag, Tensor


@dataclass
class ScriptedLink:
    """Hands out what a test has put in; keeps what is sent."""

    incoming: deque[Received] = field(default_factory=deque)
    sent: list[tuple[str, Tag, Tensor]] = field(default_factory=list)
    generation: int | None = None
    senders: frozenset[str] = frozenset()

    def put(self, src: str, tag: Tag, data: bytes) -> None:
        """Let bytes arrive."""
        self.incoming.append(Received(src, "", tag, Tensor.of_bytes(data), len(self.incoming)))

    def set_generation(
        self, generation: int, stages: Collection[str] = (), senders: Collection[str] | None = None
    ) -> None:
        """Note it."""
        self.generation, self.senders = generation, frozenset(senders or ())

    def send(self, dst: str, tag: Tag, tensor: Tensor) -> None:
        """Keep it."""
        self.sent.append((dst, tag, tensor))

    def multicast(self, stage: str, members: Collection[str], tag: Tag, tensor: Tensor) -> None:
        """Keep it."""
        self.sent += [(member, tag, tensor) for member in members]

    def receive(self, timeout: float | None = None) -> Received | None:
        """The next that was put in."""
        return self.incoming.popleft() if self.incoming else None

    def release(self, received: Received) -> None:
        """Nothing to give back."""

    def backlog(self, dst: str | None = None, kind: Kind | None = None) -> int:
        """Everything is there at once."""
        return 0


@dataclass
class ScriptedShell:
    """Hands out control messages; keeps what is told. Ends a session that would wait for ever."""

    control: deque[tuple[str, bytes]] = field(default_factory=deque)
    told: list[tuple[str, int, str]] = field(default_factory=list)
    published: list[tuple[str, bytes]] = field(default_factory=list)
    loading: Loading | None = None
    patience: int = 50

    def tell(self, state: str, generation: int, reason: str, loading: Loading | None = None) -> None:
        """Keep it."""
        self.loading = loading or self.loading
        self.told.append((state, generation, reason))

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Keep it."""
        self.published.append((topic, payload))

    def messages(self, timeout: float) -> list[tuple[str, bytes]]:
        """All that is left, once."""
        if not self.control:
            self.patience -= 1
            if self.patience < 0:
                raise Waiting
        out = list(self.control)
        self.control.clear()
        return out


class Waiting(Exception):
    """The session waits for something that the test does not send."""
