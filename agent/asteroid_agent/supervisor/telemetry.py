"""Measures how a device feels. Every probe is optional: one that fails gives null, and a warning the first time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from asteroid_core.wire.messages import Telemetry

log = logging.getLogger("asteroid.agent")
_T = TypeVar("_T")

_THROTTLED = 0x4
"""Bit of the Raspberry Pi's firmware register: it runs slower now."""


class Probe:
    """Takes telemetry; remembers which probes have failed, so that each is warned about once.

    Args:
        agent: name of the device.
        root: where /proc and /sys lie; tests hand in a directory.
    """

    def __init__(self, agent: str, root: Path = Path("/")) -> None:
        self._agent, self._root = agent, root
        self._failed: set[str] = set()
        psutil.cpu_percent(None)  # the first call has nothing to compare with

    def __call__(self) -> Telemetry:
        """Measure now."""
        net = self._take("network", psutil.net_io_counters)
        memory = self._take("memory", psutil.virtual_memory)
        swap = self._take("swap", psutil.swap_memory)
        return Telemetry(
            agent=self._agent,
            uptime_s=self._take("uptime", lambda: time.time() - psutil.boot_time()),
            cpu_percent=self._take("cpu", lambda: psutil.cpu_percent(None)),
            load1=self._take("load", lambda: os.getloadavg()[0]),
            memory_total_mb=memory.total / 1e6 if memory else None,
            memory_available_mb=memory.available / 1e6 if memory else None,
            swap_used_mb=swap.used / 1e6 if swap else None,
            temperature_c=self._take("temperature", self._temperature),
            throttled=self._take("throttling", self._throttled),
            power_w=self._take("power", self._power),
            net_rx_bytes=net.bytes_recv if net else None,
            net_tx_bytes=net.bytes_sent if net else None,
            gpu_percent=self._take("gpu", self._gpu),
        )

    def _take(self, what: str, probe: Callable[[], _T]) -> _T | None:
        try:
            return probe()
        except Exception as error:  # a board's odd sensor must not end the agent; it is said once
            if what not in self._failed:
                self._failed.add(what)
                log.warning("the probe for %s does not work here: %s", what, error)
            return None

    def _temperature(self) -> float | None:
        zones = [self._read(path) for path in sorted((self._root / "sys/class/thermal").glob("thermal_zone*/temp"))]
        values = [int(text) / 1000 for text in zones if text is not None]
        return max(values) if values else None

    def _throttled(self) -> bool | None:
        text = self._read(self._root / "sys/devices/platform/soc/soc:firmware/get_throttled")
        return bool(int(text, 16) & _THROTTLED) if text is not None else None

    def _power(self) -> float | None:
        """Sum of the INA3221 channels of a Jetson, in watts."""
        total, found = 0.0, False
        for volts in sorted((self._root / "sys/class/hwmon").glob("hwmon*/in*_input")):
            amperes = volts.with_name(volts.name.replace("in", "curr", 1))
            name = self._read(volts.parent / "name")
            u, i = self._read(volts), self._read(amperes)
            if name == "ina3221" and u is not None and i is not None:
                total, found = total + int(u) * int(i) / 1e6, True
        return total if found else None

    def _gpu(self) -> float | None:
        """Load of a Jetson's GPU in percent."""
        text = self._read(self._root / "sys/devices/platform/gpu.0/load")
        return int(text) / 10 if text is not None else None

    def _read(self, path: Path) -> str | None:
        return path.read_text().strip() if path.is_file() else None
