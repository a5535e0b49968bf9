"""Worker processes: start them, end them, notice that they have ended, pass on what they say on stderr.

A worker ends with its supervisor in three ways that do not need each other: its stdin is a pipe that closes, the kernel
kills it when the thread that started it dies (PR_SET_PDEATHSIG), and a service manager ends the whole control group.
Every method is called by the thread that owns the supervisor; the waiting thread of a child only says that it has ended
and does not reap it, so a process id can never mean another process while it is in use here.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from asteroid_agent.supervisor.events import ChildExited, ChildStarted, Launch
from asteroid_agent.supervisor.oom import judge, oom_kills
from asteroid_agent.worker.config import WorkerConfig

WORKER = (sys.executable, "-m", "asteroid_agent.worker.main")
LONGEST_LINE = 4096
"""A longer line of a worker's stderr is passed on in pieces."""
_PR_SET_PDEATHSIG = 1
_OWN_VARIABLES = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY", "JOURNAL_STREAM"}
)
"""What the service manager says to the supervisor alone."""
_PRIORITY = re.compile(r"<([0-7])>")
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's log level of each syslog priority."""

log = logging.getLogger("asteroid.worker")


@dataclass(frozen=True)
class Ended:
    """The process of a worker has ended and waits to be reaped."""

    number: int


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    reader: threading.Thread
    oom_before: int | None


class Children:
    """The worker processes of one supervisor.

    Args:
        configure: makes what a worker is told at its start.
        put: takes ``Ended`` from the waiting threads.
        memory_low: whether the machine had little memory left when that was last measured.
        command: program and arguments of a worker; tests hand in a stand-in.
    """

    def __init__(
        self,
        configure: Callable[[Launch], WorkerConfig],
        put: Callable[[Ended], None],
        memory_low: Callable[[], bool] = lambda: False,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._configure, self._put, self._memory_low, self._command = configure, put, memory_low, tuple(command)
        self._children: dict[int, _Child] = {}

    def spawn(self, number: int, launch: Launch) -> ChildStarted | ChildExited:
        """Start a worker; what comes back says whether that worked."""
        environment = {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}
        before = oom_kills()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the supervisor; and the group can be killed whole
                preexec_fn=_tie(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            return ChildExited(number, error=str(error))
        assert process.stdin is not None
        assert process.stdout is not None
        name = f"worker-{number}"
        reader = threading.Thread(target=_forward, args=(process.stdout, launch.job), name=f"{name}-log", daemon=True)
        self._children[number] = _Child(process, reader, before)
        reader.start()
        threading.Thread(target=self._watch, args=(number, process.pid), name=name, daemon=True).start()
        try:
            process.stdin.write(self._configure(launch).line())
            process.stdin.flush()
        except BrokenPipeError:
            log.warning("worker of job %s ended before it read its configuration", launch.job)  # its exit follows
        return ChildStarted(number, process.pid)

    def _watch(self, number: int, pid: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._put(Ended(number))

    def kill(self, number: int, hard: bool) -> None:
        """Ask a worker to end, or kill it and everything that it started."""
        child = self._children.get(number)
        if child is None:
            return  # it has ended and was reaped before the effect was carried out
        if hard:
            _kill_group(child.process.pid)
        else:
            child.process.send_signal(signal.SIGTERM)

    def reap(self, number: int) -> ChildExited | None:
        """Take the exit status of a worker that has ended, and kill what it left behind; None if that was done."""
        child = self._children.pop(number, None)
        if child is None:
            return None
        _kill_group(child.process.pid)
        code = child.process.wait()
        assert child.process.stdin is not None
        try:
            child.process.stdin.close()
        except BrokenPipeError:
            log.debug("worker %d left bytes on its stdin", number)
        child.reader.join(1.0)  # so that its last words stand in the log before the line about its end
        if code >= 0:
            return ChildExited(number, code=code)
        name = _signal_name(-code)
        return ChildExited(number, signal=name, oom=judge(name, child.oom_before, oom_kills(), self._memory_low()))

    def close(self, timeout: float = 5.0) -> None:
        """Kill and reap all that still run."""
        deadline = time.monotonic() + timeout
        for child in self._children.values():
            _kill_group(child.process.pid)
        for number, child in list(self._children.items()):
            try:
                child.process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                log.error("process %d outlives SIGKILL", child.process.pid)
            self._children.pop(number)


def _tie(parent: int) -> Callable[[], None]:
    """Return what a child does between fork and exec: it asks the kernel to be killed when its parent dies.

    Everything is looked up here, before the fork: other threads of the parent may hold locks at that moment.
    """
    prctl, getppid, leave = ctypes.CDLL(None).prctl, os.getppid, os._exit
    kill = int(signal.SIGKILL)

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if getppid() != parent:  # it died before we asked
            leave(3)

    return tie


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nothing is left of it
    except PermissionError:
        log.warning("the process group %d may not be killed: something in it runs as another user", pid)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal


def _forward(stream: IO[bytes], job: str) -> None:
    """Pass on what a worker writes, line by line; ``<3>`` at the beginning is a syslog priority."""
    while line := stream.readline(LONGEST_LINE):
        text = line.decode(errors="replace").rstrip()
        level = logging.INFO
        if found := _PRIORITY.match(text):
            level, text = _LEVELS[int(found[1])], text[found.end() :]
        if text:
            log.log(level, "[%s] %s", job, text)
    stream.close()
