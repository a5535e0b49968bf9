"""What ``doctor`` looks at, one function a check; values in, findings out, so that each can be tested by itself."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Literal

import psutil

from asteroid_coordinator.cli.render import device_notes
from asteroid_coordinator.cli.text import duration, megabytes
from asteroid_coordinator.cluster.registry import Registry
from asteroid_coordinator.settings import Settings
from asteroid_core import PROTOCOL, __version__
from asteroid_core.link.base import MIN_PACKET
from asteroid_core.wire.messages import CoordinatorStatus
from asteroid_core.wire.topics import TABLE, Role

NAGLE_S = 0.030
"""Delayed acknowledgements cost 40 ms (Linux); with both sides set to TCP_NODELAY a LAN answers in a few."""
LOW_DISK, NO_DISK = 1 << 30, 100 << 20
"""A checkpoint of a small model has tens of megabytes, and several are kept."""
BUILT = 1_735_689_600.0
"""1 January 2025: a clock before it has lost its battery."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        check: what was looked at.
        level: how bad it is.
        text: what was found.
        remedy: what to do.
    """

    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
    remedy: str = ""


def network(settings: Settings, timeout: float = 5.0) -> Finding:
    """Open a TCP connection and say which way it goes."""
    try:
        with socket.create_connection((settings.host, settings.port), timeout=timeout) as probe:
            mine, theirs = probe.getsockname()[0], probe.getpeername()[0]
    except OSError as error:
        return Finding(
            "network",
            "fail",
            f"no TCP connection to the broker at {settings.address}: {error.strerror or error}",
            "Start the broker, or give its address with --broker or in $ASTEROID_BROKER; a firewall may be in the way.",
        )
    return Finding("network", "ok", f"{mine} ({interface_of(mine)}) reaches {theirs} port {settings.port}")


def interface_of(address: str) -> str:
    """Name of the network interface that carries a local address."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in entries):
            return str(name)
    return "unknown interface"


def packet_size(limit: int) -> Finding:
    """Judge the broker's largest message."""
    if limit < MIN_PACKET:
        return Finding(
            "message size",
            "fail",
            f"the broker takes at most {limit} bytes in a message, tensors need {MIN_PACKET} or more",
            "Raise its limit (mosquitto: max_packet_size; EMQX: mqtt.max_packet_size; rumqttd: max_payload_size).",
        )
    if limit < 128 * 1024:
        return Finding(
            "message size",
            "warn",
            f"the broker takes at most {limit} bytes in a message: tensors go in small chunks, which is slow",
            "Raise its limit to 1 MB (mosquitto: max_packet_size).",
        )
    return Finding("message size", "ok", f"the broker takes messages of {limit // 1024} KiB")


def round_trip(times: Sequence[float], way: str) -> Finding:
    """Judge round-trip times; around 40 ms is the mark of small packets that wait for an acknowledgement."""
    if not times:
        return Finding("round trip", "fail", f"nothing came back ({way})", "Look at the broker's log and access rules.")
    middle = median(times)
    said = f"{duration(middle)} (median of {len(times)}, {way})"
    if middle >= NAGLE_S:
        return Finding(
            "round trip",
            "warn",
            f"{said}: small packets probably wait for delayed acknowledgements (40 ms)",
            "Put `set_tcp_nodelay true` into mosquitto.conf and restart it; on Wi-Fi, turn power saving off.",
        )
    return Finding("round trip", "ok", said)


def needed_topics(roles: Iterable[Role], name: str) -> list[tuple[str, str]]:
    """Topics that the roles write, with harmless names filled in: (key, topic)."""
    wanted = set(roles)
    fields = {"agent": name, "client": name, "job": name, "model": name, "dst": name, "stage": "all"}
    fields |= {"generation": "0", "src": "coordinator", "kind": "probe"}
    out = []
    for row in TABLE:
        if row.writer in wanted or (row.data and Role.COORDINATOR in wanted):
            topic = row.full
            for key, value in fields.items():
                topic = topic.replace(f"<{key}>", value)
            out.append((row.key, topic))
    return out


def rights(asked: Sequence[tuple[str, str]], refused: dict[str, str], missing: Iterable[str]) -> list[Finding]:
    """Judge the self-sent messages: which topics the broker refused, which never came back."""
    out = [
        Finding(
            "access rules",
            "fail",
            reason,
            "Allow this user to write there (broker_config/acl shows the rules), or log in as another with --username.",
        )
        for topic, reason in refused.items()
    ]
    out.extend(
        Finding(
            "access rules",
            "fail",
            f"a message on {topic} was accepted but did not come back: this user may not read there",
            "Allow this user to read there (broker_config/acl shows the rules).",
        )
        for topic in missing
        if topic not in refused
    )
    return out or [Finding("access rules", "ok", f"{len(asked)} topics may be used")]


def coordinator(status: CoordinatorStatus | None, settings: Settings) -> Finding:
    """Judge the coordinator's status."""
    if status is None:
        return Finding(
            "coordinator",
            "warn",
            f"none on the broker at {settings.address}",
            "`asteroid train` runs one for as long as it needs; `asteroid coordinator` runs one that stays.",
        )
    if status.protocol != PROTOCOL:
        return Finding(
            "coordinator",
            "fail",
            f"it speaks protocol version {status.protocol}, this command version {PROTOCOL}",
            f"Upgrade {'the coordinator' if status.protocol < PROTOCOL else 'this command'}.",
        )
    return Finding("coordinator", "ok", f"online, version {status.asteroid}")


def devices(registry: Registry) -> list[Finding]:
    """Judge the devices: at least one, all of our protocol version."""
    there = registry.present()
    known = [registry.devices[name] for name in sorted(registry.devices)]
    out = []
    if there:
        lent = sum(d.info.budget_mb for d in there if d.info is not None)
        names = ", ".join(d.name for d in there)
        out.append(Finding("devices", "ok", f"{len(there)} ready ({names}) lend {megabytes(lent)}"))
    else:
        out.append(
            Finding(
                "devices",
                "warn",
                "none is ready",
                "Start asteroid-agent on at least one, with this broker in /etc/asteroid/agent.toml.",
            )
        )
    out.extend(
        Finding("devices", "warn", note, "`asteroid devices` shows all; `journalctl -u asteroid-agent` there says why.")
        for note in device_notes(known)
    )
    old = [
        d.name
        for d in there
        if d.info is not None
        and d.info.asteroid != __version__
        and d.status is not None
        and d.status.protocol == PROTOCOL
    ]
    if old:
        out.append(Finding("devices", "ok", f"another release on {', '.join(old)}, of the same protocol version"))
    return out


def versions() -> Finding:
    """Releases of what matters, read without importing it."""
    parts = [f"asteroid {__version__}", f"protocol {PROTOCOL}", f"Python {'.'.join(map(str, sys.version_info[:3]))}"]
    missing = []
    for name in ("paho-mqtt", "pydantic", "torch", "transformers"):
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    text = ", ".join(parts)
    if "torch" in missing:
        return Finding(
            "versions",
            "warn",
            f"{text}; torch is not installed here, so no coordinator can run here",
            "pip install 'asteroid-edge[coordinator]'",
        )
    return Finding("versions", "ok", text)


def clock(now: float | None = None) -> Finding:
    """Say that the clock decides nothing, unless it is so wrong that certificates fail."""
    at = time.time() if now is None else now
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    if at < BUILT:
        return Finding(
            "clock",
            "warn",
            f"{shown} cannot be right; training does not mind, TLS certificates do",
            "Turn time synchronisation on: timedatectl set-ntp true",
        )
    return Finding("clock", "ok", f"{shown}; nothing but TLS and the times in events depends on it")


def disk(directory: Path) -> Finding:
    """Judge the space where jobs and checkpoints go."""
    place = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    text = f"{megabytes(free / 1e6)} free for {directory}"
    if not os.access(place, os.W_OK):
        return Finding(
            "state directory", "warn", f"{place} is not writable for this user", "Give another with --state-dir."
        )
    if free < LOW_DISK:
        level: Literal["warn", "fail"] = "fail" if free < NO_DISK else "warn"
        return Finding("state directory", level, text, "Free some, or give another place with --state-dir.")
    return Finding("state directory", "ok", text)
