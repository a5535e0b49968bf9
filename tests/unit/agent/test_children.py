"""Worker processes: started, ended, noticed; none outlives its supervisor."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from pathlib import Path

import psutil
from tests.support.site import environment

from asteroid_agent.supervisor.children import Children, Ended
from asteroid_agent.supervisor.events import ChildExited, ChildStarted, Launch
from asteroid_agent.worker.config import MqttConfig, WorkerConfig

LAUNCH = Launch("j", "train", "s1")


def _config(launch: Launch) -> WorkerConfig:
    return WorkerConfig(agent="pi", job=launch.job, mqtt=MqttConfig(host="nowhere"), cores=1, budget_mb=1)


def _exit(code: str) -> ChildExited:
    """Run a stand-in for a worker to its end."""
    ended: queue.Queue[Ended] = queue.Queue()
    children = Children(_config, ended.put, command=(sys.executable, "-c", code))
    assert isinstance(children.spawn(1, LAUNCH), ChildStarted)
    assert ended.get(timeout=20) == Ended(1)
    exited = children.reap(1)
    assert exited is not None
    assert children.reap(1) is None
    return exited


def test_an_exit_code_is_reported() -> None:
    assert _exit("import sys; sys.stdin.readline(); sys.exit(3)").code == 3


def test_a_signal_is_reported_by_name() -> None:
    exited = _exit("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (exited.code, exited.signal) == (None, "SIGKILL")


def test_it_gets_its_configuration_on_stdin_and_no_password_shows() -> None:
    assert _exit("import sys, json; sys.exit(0 if json.loads(sys.stdin.readline())['job'] == 'j' else 1)").code == 0


def test_a_program_that_cannot_be_started_is_an_exit() -> None:
    children = Children(_config, lambda _: None, command=("/no/such/program",))
    answer = children.spawn(1, LAUNCH)
    assert isinstance(answer, ChildExited)
    assert "No such file" in answer.error


def test_killing_ends_the_whole_group() -> None:
    ended: queue.Queue[Ended] = queue.Queue()
    code = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    )
    children = Children(_config, ended.put, command=(sys.executable, "-c", code))
    started = children.spawn(1, LAUNCH)
    assert isinstance(started, ChildStarted)
    deadline = time.monotonic() + 20
    while not (below := psutil.Process(started.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert below
    children.kill(1, hard=True)
    ended.get(timeout=20)
    children.reap(1)
    assert psutil.wait_procs(below, timeout=20)[1] == []


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    """The supervisor is killed without warning; the kernel ends its worker."""
    file = tmp_path / "pid"
    code = f"""
import pathlib, sys, time
from asteroid_agent.supervisor.children import Children
from asteroid_agent.supervisor.events import Launch
from tests.unit.agent.test_children import _config
children = Children(_config, lambda _: None, command=(sys.executable, "-c", "import time; time.sleep(60)"))
pathlib.Path({str(file)!r}).write_text(str(children.spawn(1, Launch("j", "train", "s")).pid) + "\\n")
time.sleep(60)
"""
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).resolve().parents[3])
    parent = subprocess.Popen([sys.executable, "-c", code], env=env)
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker = psutil.Process(int(file.read_text()))
    parent.kill()
    parent.wait()
    assert psutil.wait_procs([worker], timeout=20)[1] == []
