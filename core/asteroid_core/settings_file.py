"""Reads and checks a settings file: the same sentences for the agent, the command line and the coordinator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from asteroid_core.errors import InputError
from asteroid_core.plan import Frozen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

S = TypeVar("S", bound=Frozen)


def read_settings(path: Path, remedy: str) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        FileNotFoundError: there is none; only the caller knows whether that matters.
        InputError: it cannot be read.
    """
    try:
        return dict(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"The settings file {path} cannot be read: {error}.", remedy) from None


def checked(model: type[S], raw: dict[str, Any], where: str, remedy: str) -> S:
    """Return the settings.

    Raises:
        InputError: names the first field that is wrong.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise InputError(f"{where}: {place}: {first['msg']}.", remedy) from None
