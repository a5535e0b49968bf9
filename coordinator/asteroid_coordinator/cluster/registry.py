"""What the coordinator knows of the devices: a fold of their retained topics. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from asteroid_core import PROTOCOL
from asteroid_core.wire.messages import AgentInfo, AgentStatus, Telemetry

PRESENT = frozenset({"ready", "training"})


@dataclass(frozen=True)
class Device:
    """One agent, as far as its messages have told."""

    name: str
    status: AgentStatus | None = None
    info: AgentInfo | None = None
    telemetry: Telemetry | None = None

    @property
    def present(self) -> bool:
        """Whether it can take part: born, of our protocol, and its hardware known."""
        return (
            self.status is not None
            and self.status.state in PRESENT
            and self.status.protocol == PROTOCOL
            and self.info is not None
        )


@dataclass(frozen=True)
class Lost:
    """A device that was present is not any more."""

    device: str
    reason: str


@dataclass(frozen=True)
class Leaving:
    """A device that was present is about to leave."""

    device: str
    reason: str


@dataclass(frozen=True)
class Found:
    """A device that was not present is now."""

    device: str


Change = Lost | Leaving | Found


@dataclass
class Registry:
    """All devices by name. A last will counts only if its connection is that of the last birth."""

    devices: dict[str, Device] = field(default_factory=dict)

    def status(self, message: AgentStatus) -> Change | None:
        """Take a birth or a last will; says whether that makes the device lost, leaving or found."""
        old = self.devices.get(message.agent, Device(message.agent))
        if (
            message.state == "lost"
            and old.status is not None
            and old.status.state != "lost"
            and old.status.connection != message.connection
        ):
            return None
        new = replace(old, status=message)
        self.devices[message.agent] = new
        return self._change(old, new)

    def info(self, message: AgentInfo) -> Change | None:
        """Take a device's capabilities."""
        old = self.devices.get(message.agent, Device(message.agent))
        new = replace(old, info=message)
        self.devices[message.agent] = new
        return self._change(old, new)

    def telemetry(self, message: Telemetry) -> None:
        """Take a device's telemetry."""
        old = self.devices.get(message.agent, Device(message.agent))
        self.devices[message.agent] = replace(old, telemetry=message)

    def present(self) -> tuple[Device, ...]:
        """Devices that can take part, by name."""
        return tuple(self.devices[name] for name in sorted(self.devices) if self.devices[name].present)

    def foreign(self) -> tuple[str, ...]:
        """Sentences about devices that are there but speak another protocol version."""
        return tuple(
            f"{d.name} speaks protocol {d.status.protocol}, this coordinator {PROTOCOL}: upgrade the older of the two."
            for d in self.devices.values()
            if d.status is not None and d.status.state in PRESENT and d.status.protocol != PROTOCOL
        )

    @staticmethod
    def _change(old: Device, new: Device) -> Change | None:
        state = new.status.state if new.status else "unknown"
        reason = (new.status.reason if new.status else "") or state
        if old.present and state == "draining":
            return Leaving(new.name, reason)
        was_leaving = old.status is not None and old.status.state == "draining"
        if (old.present and not new.present) or (was_leaving and state in ("lost", "offline")):
            return Lost(new.name, reason)
        if new.present and not old.present:
            return Found(new.name)
        return None
