"""Processor and memory limits of an emulated device: a cgroup (version 1) of its own."""

from __future__ import annotations

import math
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 5_000
"""Short, so that being throttled averages out over the time of a layer; longer where ``LEAST_US`` would be more."""
LEAST_US = 1_000
"""The smallest quota that the kernel takes."""
REMOVE_S = 5.0


class Quota:
    """Limits of one device.

    Args:
        name: of the cgroup.
        cpu: processors, for example 0.4; None: no limit.
        memory_mb: megabytes; None: no limit.
    """

    def __init__(self, name: str, cpu: float | None, memory_mb: int | None) -> None:
        self.directories: list[Path] = []
        if cpu is not None:
            group = self._make("cpu", name)
            period = max(PERIOD_US, math.ceil(LEAST_US / cpu))
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(max(round(cpu * period), LEAST_US)))
        if memory_mb is not None:
            group = self._make("memory", name)
            (group / "memory.limit_in_bytes").write_text(str(memory_mb * 1_000_000))

    def _make(self, controller: str, name: str) -> Path:
        group = ROOT / controller / name
        group.mkdir()
        self.directories.append(group)
        return group

    @property
    def files(self) -> list[Path]:
        """Where a process writes its id to come under these limits, before it becomes what it shall be."""
        return [group / "cgroup.procs" for group in self.directories]

    def close(self) -> None:
        """Remove the cgroups; the kernel may need a moment after the last process."""
        for group in self.directories:
            remove(group)
        self.directories.clear()


def remove(group: Path) -> None:
    """Remove a cgroup that has no process any more."""
    deadline = time.monotonic() + REMOVE_S
    while group.is_dir():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def groups(prefix: str) -> list[Path]:
    """Cgroups whose name begins so."""
    return [p for controller in ("cpu", "memory") for p in (ROOT / controller).glob(f"{prefix}*") if p.is_dir()]
