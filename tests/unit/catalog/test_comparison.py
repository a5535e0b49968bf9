"""The comparison benchmark: what it says about its cells, and that it runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.site import ROOT

SCRIPT = ROOT / "bench" / "comparison.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comparison", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cell(place: str, **speed_ups: float | None) -> dict[str, Any]:
    return {
        "model": "resnet-50",
        "environment": place,
        "mbit": 100.0,
        "planners": [
            {
                "planner": name.replace("_", "-"),
                "speed_up_of_first": value,
                "samples_per_s": None if value is None else 12.0 / value,
                "stages": "" if value is None else "nx | nano",
                "why": "Too large." if value is None else "",
            }
            for name, value in speed_ups.items()
        ],
    }


def test_the_headline(bench: ModuleType) -> None:
    cells = [
        _cell("A", asteroid=1.0, dp=9.0, gpipe=None, dapple=1.3, hetpipe=1.5),
        _cell("B", asteroid=1.0, dp=12.0, gpipe=2.0, dapple=0.8, hetpipe=1.2),
    ]
    text = "\n".join(bench.headline(cells))
    assert "asteroid over dp: up to 12.00x (resnet-50 on B at 100 Mbit/s), median 10.50x." in text
    assert "asteroid over gpipe: up to 2.00x" in text
    assert "better of dapple and hetpipe: 0.80x (resnet-50 on B at 100 Mbit/s) to 1.30x (resnet-50 on A" in text
    assert "faster than asteroid: 1." in text
    assert "dapple is 1.250 times as fast: resnet-50 on B at 100 Mbit/s" in text
    assert "gpipe on A, resnet-50." in text


def test_nobody_is_ahead(bench: ModuleType) -> None:
    text = "\n".join(bench.headline([_cell("A", asteroid=1.0, dp=1.0)]))
    assert "faster than asteroid: none." in text
    assert "No plan that fits: never." in text
    assert "dapple" not in text


def test_tables(bench: ModuleType) -> None:
    titles, rows = bench.rows_of([_cell("A", asteroid=1.0, dp=9.0, gpipe=None)])
    assert rows == [["resnet-50", "A", "100", "12.00", "nx | nano", "9.00", "-"]]
    assert "nx \\| nano" in bench.as_markdown(titles, rows)
    header, line = bench.as_text(titles, rows).splitlines()
    assert header.split() == ["model", "env", "Mbit/s", "samples/s", "dp", "gpipe"]
    assert line.split() == ["resnet-50", "A", "100", "12.00", "9.00", "-"]


def test_it_runs_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    words = ["--models", "mobilenet-v2", "--environments", "A", "--mbit", "100", "--planners", "on-device", "dp"]
    path = [p for p in sys.path if p and Path(p).is_dir()]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--processes", "1", "--json", str(file)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Repeat: python bench/comparison.py --models mobilenet-v2")
    document = json.loads(file.read_text())
    (cell,) = document["cells"]
    assert [row["planner"] for row in cell["planners"]] == ["on-device", "dp"]
    assert cell["planners"][1]["speed_up_of_first"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--planners", "asterod"], "did you mean asteroid?"),
        (["--mbit", "0"], "no speed"),
        (["--batch", "0"], "at least 1"),
    ],
)
def test_wrong_words(
    bench: ModuleType, words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["comparison.py", *words])
    with pytest.raises(SystemExit) as caught:
        bench.main()
    assert caught.value.code == 2
    assert says in capsys.readouterr().err
