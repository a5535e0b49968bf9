"""The sentence about a name that is not in the catalog."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from asteroid_core.errors import InputError


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error: there is no such thing, what was perhaps meant, what there is."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, 0.5)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return InputError(f"There is no {what} {name!r}{meant}.", f"Known: {', '.join(names)}.")
