"""Whether the kernel killed a process for memory: counters of the control group, else of the whole machine."""

from __future__ import annotations

from pathlib import Path

from asteroid_agent.supervisor.events import Oom


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes the kernel has killed for memory so far; None where no counter can be read.

    The control group's counter (version 2 or 1) holds only ours and those beside us; a container often does not see its
    own, then the machine's counter in ``/proc/vmstat`` serves.
    """
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    files = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append(cgroups / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    for file in (*files, proc / "vmstat"):
        try:
            text = file.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return None


def judge(signal: str, before: int | None, after: int | None, memory_low: bool) -> Oom:
    """Say whether a process that a signal ended was killed for memory.

    Args:
        signal: its name; the kernel's out-of-memory killer uses SIGKILL.
        before: counter when the process began.
        after: counter when it had ended.
        memory_low: whether the machine had little memory left when that was last measured.
    """
    if signal != "SIGKILL":
        return "no"
    if before is not None and after is not None:
        return "yes" if after > before else "no"
    return "perhaps" if memory_low else "no"
