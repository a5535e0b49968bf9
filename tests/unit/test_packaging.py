"""What a wheel holds."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built as a packager without network does it."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run([*command, "-w", directory, ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = directory.glob("asteroid_edge-*.whl")
    return zipfile.ZipFile(file)


def _committed(*patterns: str) -> set[str]:
    """Files of the tree, as the wheel has them."""
    return {path.name for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}


def test_top_level_is_three_packages_and_nothing_that_could_shadow_others(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    info = {name for name in top if name.endswith((".dist-info", ".data"))}
    assert top - info == {"asteroid_core", "asteroid_agent", "asteroid_coordinator"}


@pytest.mark.parametrize(
    ("folder", "package"),
    [("core", "asteroid_core"), ("agent", "asteroid_agent"), ("coordinator", "asteroid_coordinator")],
)
def test_every_module_and_the_type_marker_is_in(wheel: zipfile.ZipFile, folder: str, package: str) -> None:
    wanted = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder / package).rglob("*.py")}
    assert wanted | {f"{package}/py.typed"} <= set(wheel.namelist())


def test_units_broker_files_and_licence_are_in(wheel: zipfile.ZipFile) -> None:
    for folder in ("systemd", "broker_config"):
        shared = {n.rsplit("/", 1)[1] for n in wheel.namelist() if f".data/data/share/asteroid/{folder}/" in n}
        assert shared == _committed(f"{folder}/*"), folder
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_both_commands_lead_to_functions(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    parsed = configparser.ConfigParser()
    parsed.read_string(wheel.read(name).decode())
    scripts = dict(parsed["console_scripts"])
    assert set(scripts) == {"asteroid", "asteroid-agent"}
    for target in scripts.values():
        module, function = target.split(":")
        assert f"def {function}(" in wheel.read(module.replace(".", "/") + ".py").decode()


def test_base_install_asks_for_no_training_engine(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    needs = [line.split(": ", 1)[1] for line in wheel.read(name).decode().splitlines() if line.startswith("Requires-D")]
    base = {re.split(r"[ <>=!~;\[]", need)[0] for need in needs if "extra ==" not in need}
    assert base == {"paho-mqtt", "pydantic", "psutil", "numpy", "safetensors", "tomli"}
