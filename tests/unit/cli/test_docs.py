"""docs/cli.md names every verb, option, setting and exit code that there is."""

from __future__ import annotations

import inspect
import re
import signal
from typing import Any

import pytest
from tests.support.site import ROOT
from typer.models import OptionInfo

from asteroid_coordinator.cli import train
from asteroid_coordinator.cli.common import _OPTIONS
from asteroid_coordinator.cli.main import _VERBS, INTERRUPTED
from asteroid_coordinator.planner import PLANNERS
from asteroid_coordinator.settings import Settings

PAGE = (ROOT / "docs" / "cli.md").read_text()


def _flags(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def _declared(annotation: Any) -> list[str]:
    """Names of the option that an annotation declares; typer keeps the first one as its default."""
    out: list[str] = []
    for info in getattr(annotation, "__metadata__", ()):
        if isinstance(info, OptionInfo):
            out.extend(str(name) for name in (info.default, *(info.param_decls or ())))
    return out


@pytest.mark.parametrize("verb", _VERBS)
def test_verbs_and_their_options(verb: str) -> None:
    assert f"| `{verb}" in PAGE
    for parameter in inspect.signature(getattr(_VERBS[verb], verb), eval_str=True).parameters.values():
        for name in _declared(parameter.annotation):
            # of --kill/--no-kill, the one that changes something stands on the page
            assert f"`{name.split('/')[-1]}" in PAGE, name


def test_the_check_above_sees_options() -> None:
    signature = inspect.signature(_VERBS["plan"].plan, eval_str=True)
    seen = [name for parameter in signature.parameters.values() for name in _declared(parameter.annotation)]
    assert seen == ["--set", "-s", "--planner", "--svg", "--trace"]


def test_common_options_settings_and_exit_codes() -> None:
    for annotation, _ in _OPTIONS.values():
        names = _declared(annotation)
        assert names[0] in PAGE
        assert names[0].startswith("--")
    for name in Settings.model_fields:
        assert f"`{name}`" in PAGE
    for code in (0, 1, 2, INTERRUPTED, 128 + signal.SIGHUP, 128 + signal.SIGTERM):
        assert re.search(rf"^\|[^|]*\b{int(code)}\b", PAGE, re.MULTILINE), code


def test_examples_name_only_planners_that_exist() -> None:
    lines = [line for module in _VERBS.values() for line, _ in module.EXAMPLES]
    named = [found[1] for line in lines if (found := re.search(r"(?:--planner |plan\.planner=)(\S+)", line))]
    assert set(named) <= set(PLANNERS)
    assert _flags(" ".join(line for line, _ in train.EXAMPLES)) <= _flags(PAGE)
