"""Import rules, and nothing that unpickles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = tuple(sorted(p for part in ("core", "agent", "coordinator") for p in (ROOT / part).rglob("*.py")))
UNPICKLES = {("torch", "load"), ("torch.export", "load"), ("joblib", "load"), ("pickle", "load"), ("pickle", "loads")}


def test_import_contracts_hold() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def _calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value), node.func.attr


def test_nothing_unpickles() -> None:
    assert len(SOURCES) > 50
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {(n.module or "").split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}, path
        assert not set(_calls(tree)) & UNPICKLES, path
        allowed = {v for c in ast.walk(tree) if isinstance(c, ast.Call) for k in c.keywords if k.arg == "allow_pickle"
                   for v in [ast.unparse(k.value)]}  # fmt: skip
        assert allowed <= {"False"}, path


def test_files_stay_readable() -> None:
    long = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert not {name: lines for name, lines in long.items() if lines > 500}
