"""Where jobs are looked up: at the coordinator on the broker, else in the state directory of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.session import Session, maybe_coordinator
from asteroid_coordinator.store import StateDir, Store
from asteroid_core.errors import InputError
from asteroid_core.wire.messages import Event


class JobsSource(Protocol):
    """Answers questions about one job."""

    def state(self, job: str) -> dict[str, Any]:
        """Where it is."""

    def story(self, job: str) -> list[Event]:
        """What happened, oldest first."""


class _Remote:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._answers: dict[str, dict[str, Any]] = {}

    def _ask(self, job: str) -> dict[str, Any]:
        if job not in self._answers:
            self._answers[job] = self._session.client.request("status", job=job).data
        return self._answers[job]

    def state(self, job: str) -> dict[str, Any]:
        """Where it is."""
        return {key: value for key, value in self._ask(job).items() if key != "events"}

    def story(self, job: str) -> list[Event]:
        """Its last events, as many as one message holds."""
        return [Event.model_validate(event) for event in self._ask(job).get("events", [])]


class _Local:
    def __init__(self, store: Store) -> None:
        self._store = store

    def state(self, job: str) -> dict[str, Any]:
        """Where it was left."""
        return self._store.state(job)

    def story(self, job: str) -> list[Event]:
        """All its events."""
        return [Event(job=job, seq=stored.seq, **stored.body) for stored in self._store.events(job)]


@contextmanager
def local_store(ui: Ui) -> Iterator[Store | None]:
    """Open the store of the state directory for reading; None if no coordinator has ever run here."""
    if not StateDir(ui.settings.state_dir).database.is_file():
        yield None
        return
    with Store(ui.settings.state_dir, read_only=True) as store:
        yield store


@contextmanager
def jobs_source(ui: Ui) -> Iterator[JobsSource]:
    """Find who knows about jobs.

    Raises:
        BrokerError: no broker.
        InputError: no coordinator on the broker, and none has run on this machine.
    """
    with maybe_coordinator(ui) as session:
        if session is not None:
            yield _Remote(session)
            return
        with local_store(ui) as store:
            if store is None:
                raise InputError(
                    f"There is no coordinator on the broker at {ui.settings.address}, "
                    f"and no job in {ui.settings.state_dir}.",
                    "Start one with `asteroid coordinator`, or give its --state-dir.",
                )
            yield _Local(store)
