"""Tells systemd how a service is doing (sd_notify): one datagram, no library; harmless without systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send ``READY=1``, ``STOPPING=1``, ``WATCHDOG=1``, ``STATUS=...`` or several lines of them.

    Returns:
        Whether systemd listens and was told. A service must not fail because its supervisor does not listen.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Seconds between two ``WATCHDOG=1``, half of what systemd demands; None if it demands none of this process."""
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 2e6
