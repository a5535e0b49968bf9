"""What a wheel holds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_wheel_holds_packages_units_and_broker_files(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("asteroid_core/plan.py", "asteroid_agent/main.py", "asteroid_coordinator/cli/main.py"):
        assert name in names
    for end in ("systemd/asteroid-agent.service", "broker_config/acl", "asteroid_core/py.typed", "LICENSE"):
        assert any(name.endswith(end) for name in names), end
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
