"""What this device is and what it can lend: cores, memory, accelerators, installed backends. Imports none of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from asteroid_agent.settings import Lend
from asteroid_core.wire.messages import Accelerator, AgentInfo

BACKENDS: Mapping[str, str] = {"torch": "torch", "onnx": "onnxruntime-training-cpu"}
"""Backend: the distribution that brings it."""
LENT_BY_DEFAULT = 0.6
"""Part of the memory that is lent unless the owner says how much; the rest is for what the machine is there for."""


@dataclass(frozen=True)
class Machine:
    """What was found on this machine.

    Attributes:
        cores: processors that this process may use, by affinity and control group.
        memory_mb: physical memory, or the control group's limit if that is less.
        model: name of the board, if it says one.
        accelerators: GPUs.
        backends: backend to version.
    """

    cores: float
    memory_mb: int
    model: str | None
    accelerators: tuple[Accelerator, ...]
    backends: dict[str, str]


def find(root: Path = Path("/"), version: Callable[[str], str] = metadata.version) -> Machine:
    """Look at this machine.

    Args:
        root: where /proc and /sys lie; tests hand in a directory.
        version: version of an installed distribution, or PackageNotFoundError.
    """
    cores = float(len(os.sched_getaffinity(0)))
    limit = _quota(root)
    memory = psutil.virtual_memory().total
    group = _number(root / "sys/fs/cgroup/memory.max") or _number(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    memory = min(memory, group) if group else memory
    backends = {}
    for name, distribution in BACKENDS.items():
        try:
            backends[name] = version(distribution)
        except metadata.PackageNotFoundError:
            continue  # not installed: the device does not offer it
    return Machine(
        cores=min(cores, limit) if limit else cores,
        memory_mb=int(memory / 1e6),
        model=_text(root / "proc/device-tree/model"),
        accelerators=_accelerators(root),
        backends=backends,
    )


def info(name: str, machine: Machine, lend: Lend) -> AgentInfo:
    """Return what is said on the device's info topic; an owner may lend less than there is, not more."""
    budget = lend.memory_mb if lend.memory_mb is not None else int(machine.memory_mb * LENT_BY_DEFAULT)
    return AgentInfo(
        agent=name,
        model=machine.model,
        architecture=platform.machine(),
        cores=min(lend.cores, machine.cores) if lend.cores is not None else machine.cores,
        memory_mb=machine.memory_mb,
        budget_mb=min(budget, machine.memory_mb),
        scratch_mb=lend.scratch_mb if lend.scratch_dir is not None else 0,
        accelerators=machine.accelerators,
        backends=machine.backends,
        python=platform.python_version(),
        os=f"{platform.system()} {platform.release()}",
    )


def _quota(root: Path) -> float | None:
    """Cores that the control group allows, None without a limit."""
    two = _text(root / "sys/fs/cgroup/cpu.max")
    if two is not None:
        quota, _, period = two.partition(" ")
        return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None
    quota_us = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period_us = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None


def _accelerators(root: Path) -> tuple[Accelerator, ...]:
    """GPUs that a driver shows without any library: NVIDIA cards, and the GPU that is part of a Jetson."""
    cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    found = []
    for card in cards:
        lines = (_text(card) or "").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), "")
        found.append(Accelerator(kind="cuda", name=name))
    if not found and ((root / "dev/nvhost-gpu").exists() or (root / "dev/nvgpu").exists()):
        found.append(Accelerator(kind="cuda", name="integrated"))
    return tuple(found)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip("\0\n ") or None
    except OSError:
        return None  # this kernel or board does not have it


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None
