"""The job files that people copy are right."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.support.site import ROOT

from asteroid_coordinator.cli.jobfile import read_job
from asteroid_core.spec import load_job, parse_job

FILES = sorted((ROOT / "examples").glob("*.toml"))


def test_all_are_there() -> None:
    assert {path.stem for path in FILES} == {"bert", "digits", "gpt2", "mobilenet", "own_model"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_is_a_job(path: Path) -> None:
    spec = load_job(path)
    assert parse_job(spec.model_dump(mode="json", exclude_none=True), str(path)) == spec
    assert spec.train.epochs or spec.train.rounds
    assert 0 < spec.data.validation < 1


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_their_text_is_found_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(read_job(ROOT / "examples" / f"{name}.toml").data.source).is_file()


def test_the_own_model_has_what_its_job_names() -> None:
    spec = read_job(ROOT / "examples" / "own_model.toml")
    module_spec = importlib.util.spec_from_file_location("own_model", ROOT / "examples" / "own_model.py")
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    network = getattr(module, spec.model.name.partition(":")[2])(**spec.model.options)
    data = getattr(module, spec.data.source.partition(":")[2])(**spec.data.options)
    point, arm = data[5]
    assert network(point[None]).shape == (1, 3)
    assert arm in (0, 1, 2)
    assert len(data) == spec.data.options["samples"]
