"""The options of a data source, each asked for once with its type and bounds; what nobody asked for is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asteroid_core.errors import InputError

Scalar = str | int | float | bool


class Options:
    """Reads ``[data.options]`` of a job for one source.

    Args:
        given: what the job says.
        source: names the source in errors.
    """

    def __init__(self, given: Mapping[str, Scalar], source: str) -> None:
        self._given, self._source = dict(given), source
        self._known: list[str] = []

    def integer(self, name: str, default: int, lo: int, hi: int) -> int:
        """A whole number from ``lo`` to ``hi``."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lo <= value <= hi:
            raise self._wrong(name, value, f"a whole number from {lo} to {hi}")
        return value

    def number(self, name: str) -> float | None:
        """A positive number, or None if it is not given."""
        value = self._take(name, None)
        if value is None:
            return None
        if isinstance(value, bool | str) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words; the first is the default."""
        value = self._take(name, choices[0])
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, value, " or ".join(repr(c) for c in choices))
        return value

    def text(self, name: str, default: str) -> str:
        """Any text that is not empty."""
        value = self._take(name, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, "a text")
        return value

    def done(self) -> None:
        """Refuse options that this source does not have.

        Raises:
            InputError: names the first one.
        """
        for name in self._given:
            if name not in self._known:
                have = ", ".join(self._known) or "none"
                raise InputError(
                    f"data.options.{name} is not an option of {self._source}.", f"Its options are: {have}."
                )

    def _take(self, name: str, default: Scalar | None) -> Scalar | None:
        self._known.append(name)
        return self._given.get(name, default)

    def _wrong(self, name: str, value: object, wanted: str) -> InputError:
        return InputError(f"data.options.{name} is {value!r} for {self._source}.", f"It must be {wanted}.")
