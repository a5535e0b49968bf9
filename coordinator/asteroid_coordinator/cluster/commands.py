"""Commands that wait for their answer, and when to say them again. Pure.

A broker may drop a message that it has acknowledged. A supervisor does the same command once, however often it comes,
and answers each time, so saying it again is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asteroid_core.wire.messages import Command

AGAIN_S = 3.0
"""Seconds without an answer after which a command is said again."""
TRIES = 5
"""After so many the device is left to its last will and to deadlines."""


@dataclass
class _Waiting:
    command: Command
    due: float
    left: int


@dataclass
class Commands:
    """Commands on their way, by device and id."""

    _waiting: dict[tuple[str, str], _Waiting] = field(default_factory=dict)

    def sent(self, device: str, command: Command, now: float) -> None:
        """Note a command that has been published."""
        self._waiting[device, command.id] = _Waiting(command, now + AGAIN_S, TRIES - 1)

    def answered(self, device: str, identity: str) -> None:
        """Note an answer."""
        self._waiting.pop((device, identity), None)

    def lost(self, device: str) -> None:
        """Forget what a device that is gone will not answer."""
        for key in [key for key in self._waiting if key[0] == device]:
            del self._waiting[key]

    def due(self, now: float) -> list[tuple[str, Command]]:
        """Return what has to be published again now."""
        out = []
        for (device, identity), waiting in list(self._waiting.items()):
            if waiting.due > now:
                continue
            if not waiting.left:
                del self._waiting[device, identity]
                continue
            waiting.due, waiting.left = now + AGAIN_S, waiting.left - 1
            out.append((device, waiting.command))
        return out
