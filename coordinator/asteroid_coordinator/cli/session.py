"""Reaches a coordinator for a verb: the one on the broker, or one that runs in this process for as long as needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.client import Client
from asteroid_core import PROTOCOL
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.wire.messages import CoordinatorStatus

FIND_S = 1.0
"""A retained status arrives within a round trip; a broker that is slower than this is a matter for ``doctor``."""
START_S = 20.0
"""A coordinator in this process has imported torch before it starts, so this is only its birth on the broker."""


@dataclass(frozen=True)
class Session:
    """A client, and whether the coordinator that answers it lives in this process."""

    client: Client
    local: bool


@contextmanager
def on_broker(ui: Ui) -> Iterator[Client]:
    """Connect to the broker.

    Raises:
        BrokerError: it cannot be reached or refuses the login.
    """
    client = Client(ui.settings)
    try:
        client.connect()
        ui.detail(f"Connected to the broker at {ui.settings.address}.")
        yield client
    finally:
        client.close()


@contextmanager
def maybe_coordinator(ui: Ui) -> Iterator[Session | None]:
    """Connect, and find the coordinator on the broker, if there is one.

    Raises:
        BrokerError: no broker.
        InputError: the coordinator speaks another protocol version.
    """
    with on_broker(ui) as client:
        found = client.find_coordinator(FIND_S)
        if found is not None:
            check_version(found)
            ui.detail("Found a coordinator on the broker.")
        yield Session(client, local=False) if found is not None else None


@contextmanager
def found_coordinator(ui: Ui, otherwise: str) -> Iterator[Session]:
    """Connect, and find the coordinator on the broker; ``otherwise`` begins the sentence if there is none.

    Raises:
        InputError: there is none.
    """
    with maybe_coordinator(ui) as session:
        if session is None:
            raise InputError(
                f"{otherwise}: there is no coordinator on the broker at {ui.settings.address}.",
                "Start one with `asteroid coordinator` or `systemctl start asteroid-coordinator`.",
            )
        yield session


@contextmanager
def running_coordinator(ui: Ui) -> Iterator[Session]:
    """Connect, and find the coordinator on the broker or run one in this process until the block ends."""
    with maybe_coordinator(ui) as session:
        if session is not None:
            yield session
            return
    ui.say("No coordinator on the broker: running one in this process.")
    with in_process(ui), on_broker(ui) as client:
        if client.find_coordinator(START_S) is None:
            raise AsteroidError(
                "The coordinator in this process did not show up on the broker.",
                "Run `asteroid doctor`; a user who may not write to coordinator/status is the usual reason.",
            )
        yield Session(client, local=True)


def check_version(status: CoordinatorStatus) -> None:
    """Refuse a coordinator of another protocol version.

    Raises:
        InputError: says which of the two is older.
    """
    if status.protocol != PROTOCOL:
        older = "the coordinator" if status.protocol < PROTOCOL else "this command"
        raise InputError(
            f"The coordinator speaks protocol version {status.protocol}, this command version {PROTOCOL}.",
            f"Upgrade {older}.",
        )


@contextmanager
def in_process(ui: Ui, take_over: bool = False) -> Iterator[None]:
    """Run a coordinator until the block ends. Imported here: it brings torch, which takes seconds.

    Args:
        ui: settings and narration.
        take_over: go on with the jobs that a coordinator which has died left running.
    """
    from asteroid_coordinator.service import Coordinator

    show_logs(ui)
    coordinator = Coordinator(ui.settings)
    coordinator.start(take_over=take_over)
    try:
        yield
    finally:
        coordinator.stop()


class _ConsoleLog(logging.Handler):
    """Log records as narration, so that they do not tear a live view apart."""

    def __init__(self, ui: Ui) -> None:
        super().__init__()
        self._ui = ui

    def emit(self, record: logging.LogRecord) -> None:
        self._ui.say(record.getMessage())


def show_logs(ui: Ui) -> None:
    """Show warnings of the coordinator in this process, all of it with ``--verbose``."""
    logger = logging.getLogger("asteroid_coordinator")
    logger.handlers[:] = [_ConsoleLog(ui)]
    logger.setLevel(logging.INFO if ui.verbose else logging.WARNING)
    logger.propagate = False
