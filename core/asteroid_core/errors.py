"""One family of errors: what was found, what to do about it; every one is a sentence for a person."""

from __future__ import annotations


class AsteroidError(Exception):
    """Something went wrong that a person should read.

    Args:
        what: one sentence that says what is wrong.
        remedy: what to do about it; empty if nothing can be said.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what.strip()
        self.remedy = remedy.strip()
        super().__init__(f"{self.what} {self.remedy}".strip())


class InputError(AsteroidError):
    """The person can mend it: a job file, a name, a path, a setting. Exit code 2."""

    exit_code = 2


class BrokerError(InputError):
    """The broker cannot be reached, refuses the login, or forbids a topic."""


class WireError(AsteroidError):
    """Bytes from the network that are not what the protocol says; they are dropped and counted."""


class ProgramError(InputError):
    """A model that cannot be exported, cut or loaded; names the operator or the reason."""


class PlanError(InputError):
    """No plan fits; says which device lacks what."""
