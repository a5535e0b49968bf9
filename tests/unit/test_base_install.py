"""The supervisor starts with the base install alone, and stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BLOCK = """
import sys
BLOCKED = {blocked!r}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)
        return None
sys.meta_path.insert(0, Block())
"""
EXTRAS = (
    "torch", "onnxruntime", "transformers", "sklearn", "typer", "rich", "iotcore", "PIL", "hypothesis", "pytest",
    "scipy",
)  # fmt: skip


def _run(blocked: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    script = _BLOCK.format(blocked=blocked) + code
    path = [p for p in sys.path if p and Path(p).is_dir()]
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"], capture_output=True, text=True
    )


def test_supervisor_needs_no_extra_and_stays_light() -> None:
    done = _run(
        (*EXTRAS, "numpy", "safetensors"),
        "import asteroid_agent.main as m\n"
        "from asteroid_agent.settings import load_settings\n"
        "from asteroid_agent.supervisor import capabilities\n"
        "m.parser().parse_args([])\n"
        "s = load_settings(None, {'name': 'pi-1'}, {})\n"
        "print(capabilities.info(s.name, capabilities.find(), s.lend).agent)\n"
        "assert not {'numpy', 'torch', 'safetensors', 'onnxruntime'} & set(sys.modules)\n",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "pi-1"), done.stderr


def test_worker_without_torch_says_what_to_install() -> None:
    done = _run(
        EXTRAS,
        "import asteroid_agent.worker.main\n"
        "from asteroid_agent.backend import open_backend\n"
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None\n"
        "try:\n    open_backend('torch', None, {}, None, 1)\n"
        "except Exception as error:\n    print(error)\n",
    )
    assert "pip install 'asteroid-edge[torch]'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "module", ["asteroid_core.link.tensors", "asteroid_core.data.opening", "asteroid_core.schedule"]
)
def test_core_needs_no_extra(module: str) -> None:
    done = _run(EXTRAS, f"import {module}\n")
    assert done.returncode == 0, done.stderr
