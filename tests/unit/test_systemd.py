"""The unit files are sound and hardened, and the example settings are what the agent reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asteroid_agent.settings import load_settings

UNITS = Path(__file__).resolve().parents[2] / "systemd"
NAMES = ("asteroid-agent.service", "asteroid-coordinator.service")
EXPOSURE = 2.0
"""Highest exposure level of `systemd-analyze security` that we accept; an unhardened unit has 9.6."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def _copy(name: str, directory: Path) -> Path:
    """The unit with a program that exists here."""
    text = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", (UNITS / name).read_text(), flags=re.MULTILINE)
    copy = directory / name
    copy.write_text(text)
    return copy


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_units_are_valid(name: str, tmp_path: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", _copy(name, tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_units_are_hardened(name: str, tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(_copy(name, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True)
    if "--offline" in done.stderr:
        pytest.skip("this systemd-analyze is older than 250")
    level = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= EXPOSURE


@pytest.mark.parametrize("name", NAMES)
def test_units_notify_and_watch(name: str) -> None:
    text = (UNITS / name).read_text()
    for line in ("Type=notify", "WatchdogSec=", "StateDirectory=asteroid", "RestartPreventExitStatus=2"):
        assert line in text


def test_the_example_settings_are_read(tmp_path: Path) -> None:
    text = (UNITS / "agent.toml.example").read_text()
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    file = tmp_path / "agent.toml"
    file.write_text(text.replace("/etc/asteroid/ca.crt", str(authority)))
    settings = load_settings(file, {}, environ={})
    assert (settings.name, settings.broker.port, settings.lend.cores) == ("pi-1", 8883, 3.0)
    assert settings.link_settings({}).secure
