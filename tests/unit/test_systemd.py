"""The unit files are sound and hardened, and the example settings are what the agent reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asteroid_agent.settings import load_settings
from asteroid_coordinator.settings import load_settings as load_coordinator_settings

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
    for line in (
        "Type=notify",
        "LoadCredential=mqtt.password:",
        "WatchdogSec=",
        "StateDirectory=asteroid",
        "RestartPreventExitStatus=2",
    ):
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


def test_the_coordinators_example_settings_are_read(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    file = tmp_path / "coordinator.toml"
    file.write_text((UNITS / "coordinator.toml.example").read_text().replace("/etc/asteroid/ca.crt", str(authority)))
    settings = load_coordinator_settings(environ={"STATE_DIRECTORY": "/var/lib/asteroid"}, files=[file])
    assert (settings.address, settings.username) == ("broker.lan:8883", "coordinator")
    assert settings.state_dir == Path("/var/lib/asteroid")


@pytest.mark.parametrize("example", ["agent.toml.example", "coordinator.toml.example"])
def test_what_the_examples_comment_out_is_valid_too(example: str, tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = )", r"\1", (UNITS / example).read_text(), flags=re.MULTILINE)
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    file = tmp_path / "all.toml"
    file.write_text(text.replace("/etc/asteroid/ca.crt", str(authority)))
    if example.startswith("agent"):
        assert load_settings(file, {}, environ={}).broker.password_file == Path("/etc/asteroid/mqtt.password")
    else:
        settings = load_coordinator_settings(environ={}, files=[file])
        assert settings.password_file == Path("/etc/asteroid/coordinator.password")


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None or shutil.which("systemd-tmpfiles") is None or os.geteuid() != 0,
    reason="systemd-sysusers or systemd-tmpfiles is not installed, or this is not root",
)
def test_user_and_directories_are_made_and_passwords_are_closed(tmp_path: Path) -> None:
    for kind in ("sysusers", "tmpfiles"):
        place = tmp_path / "usr/lib" / f"{kind}.d"
        place.mkdir(parents=True)
        shutil.copy(UNITS / f"asteroid.{kind}.conf", place / "asteroid.conf")
    settings = tmp_path / "etc/asteroid"
    settings.mkdir(parents=True)
    for name in ("agent.toml", "mqtt.password"):
        (settings / name).touch(mode=0o644)
    for command in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
        subprocess.run([*command, f"--root={tmp_path}", "asteroid.conf"], check=True, capture_output=True)
    user = next(line for line in (tmp_path / "etc/passwd").read_text().splitlines() if line.startswith("asteroid:"))
    number = int(user.split(":")[2])
    wanted = {
        "etc/asteroid/agent.toml": (0o640, 0, number),
        "etc/asteroid/mqtt.password": (0o600, 0, 0),
        "var/lib/asteroid": (0o700, number, number),
        "var/lib/asteroid/scratch": (0o700, number, number),
    }
    for name, expected in wanted.items():
        found = (tmp_path / name).stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == expected, name
