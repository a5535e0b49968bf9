"""Reads a job file for a verb, with what the command line overrides."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asteroid_core.errors import InputError
from asteroid_core.spec import JobSpec, load_job, parse_job

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_job(path: Path, overrides: Sequence[str] = (), planner: str | None = None) -> JobSpec:
    """Load the job file and apply ``section.field=value`` overrides and ``--planner``.

    Relative paths in a job file mean places beside it, so that a job can be submitted from anywhere.

    Raises:
        InputError: the file, a field or an override is wrong.
    """
    raw = load_job(path).model_dump(mode="json", exclude_none=True)
    source = path.parent / raw["data"]["source"]
    if source.exists():
        raw["data"]["source"] = str(source.resolve())
    if raw["model"].get("weights"):
        raw["model"]["weights"] = str((path.parent / raw["model"]["weights"]).resolve())
    if planner is not None:
        overrides = [*overrides, f"plan.planner={planner}"]
    for text in overrides:
        _apply(raw, text)
    _one_length(raw, overrides)
    return parse_job(raw, str(path) if not overrides else f"{path} with {' '.join(overrides)}")


def make_importable(path: Path) -> None:
    """Let ``module:function`` of a job find modules that lie beside the job file, for a coordinator in this process."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _one_length(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """``--set train.rounds`` takes the place of the file's epochs, and the other way round."""
    given = {text.partition("=")[0].strip() for text in overrides}
    for mine, other in (("rounds", "epochs"), ("epochs", "rounds")):
        if f"train.{mine}" in given and f"train.{other}" not in given:
            raw["train"].pop(other, None)


def _apply(raw: dict[str, Any], text: str) -> None:
    place, equals, value = text.partition("=")
    keys = place.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"--set {text!r} is not section.field=value.", "Write for example --set train.rounds=20.")
    at = raw
    for key in keys[:-1]:
        inner = at.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {text!r}: {key} has no fields.", "See docs/jobs.md for every field.")
        at = inner
    at[keys[-1]] = _value(value.strip())


def _value(text: str) -> Any:
    """A TOML value if it is one (numbers, true, lists, quoted text), else the text as it stands."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
