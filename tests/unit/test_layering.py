"""Import rules, and nothing that unpickles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = tuple(sorted(p for part in ("core", "agent", "coordinator") for p in (ROOT / part).rglob("*.py")))
MODULES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"torch.load", "torch.export.load", "torch.jit.load", "torch.hub.load"}
"""Functions that run what a file asks them to; numpy refuses unless ``allow_pickle`` says otherwise."""


def test_import_contracts_hold() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def _imported(tree: ast.AST) -> dict[str, str]:
    """Local names and what they stand for, in full."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                names.setdefault(alias.name, alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def _offences(source: str) -> Iterator[str]:
    """What in a module could unpickle."""
    tree = ast.parse(source)
    names = _imported(tree)
    yield from (full for full in names.values() if full.split(".")[0] in MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            full = f"{names.get(first, first)}.{rest}".rstrip(".")
            if full in CALLS:
                yield full
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False":
                    yield "allow_pickle"
            if ast.unparse(node.func).rsplit(".", 1)[-1] in {"import_module", "__import__"} and node.args:
                argument = node.args[0]
                if isinstance(argument, ast.Constant) and str(argument.value).split(".")[0] in MODULES:
                    yield str(argument.value)


def test_nothing_unpickles() -> None:
    found = {str(path.relative_to(ROOT)): list(_offences(path.read_text())) for path in SOURCES}
    assert not {path: offences for path, offences in found.items() if offences}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.export.load('x')",
        "from torch.export import load as read\nread('x')",
        "from torch import export\nexport.load('x')",
        "import torch\nread = torch.load",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import importlib\nimportlib.import_module('pickle')",
    ],
)
def test_the_search_finds_what_unpickles(source: str) -> None:
    assert list(_offences(source))


def test_the_search_finds_all_packages() -> None:
    assert {path.relative_to(ROOT).parts[1] for path in SOURCES} == {
        "asteroid_core", "asteroid_agent", "asteroid_coordinator",
    }  # fmt: skip


def test_files_stay_readable() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert not {name: lines for name, lines in long.items() if lines > 500}
