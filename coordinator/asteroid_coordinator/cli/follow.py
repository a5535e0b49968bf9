"""Follows a job until it ends: a live view at a terminal, lines elsewhere; and what Ctrl-C does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.live import Live

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.jobview import JobView
from asteroid_coordinator.cli.render import event_line, live_view, progress_line
from asteroid_coordinator.cli.session import Session
from asteroid_coordinator.cli.text import clean
from asteroid_coordinator.client import CoordinatorError, Heard
from asteroid_core.errors import AsteroidError
from asteroid_core.wire.messages import CoordinatorStatus, Event, JobState, Message

LINE_EVERY_S = 5.0
"""How often a line is written where no live view makes sense."""
TICK_S = 0.25
"""How often the view is drawn again; also the longest wait for Ctrl-C."""
AFTER_S = 0.3
"""How long late metrics and events may follow the last state: they travel on topics of their own."""


Look = Callable[[JobView], None]


class Detached(Exception):
    """The person left a job that goes on elsewhere."""


class Follower:
    """One job on one screen.

    Args:
        ui: where to draw.
        session: whom to listen to.
        job: which one; ``client.watch(job)`` has been called.
        fresh: ignore what the broker has kept of an earlier job of this name.
        look: called after each message.
    """

    def __init__(self, ui: Ui, session: Session, job: str, *, fresh: bool, look: Look | None = None) -> None:
        self.view = JobView(job)
        self.interrupted = False
        self._ui, self._session, self._stale, self._look = ui, session, fresh, look
        self._last_line = time.monotonic()
        self._live: Live | None = None

    def run(self) -> JobView:
        """Follow until the job ends.

        Raises:
            Detached: Ctrl-C, and the coordinator is elsewhere.
            KeyboardInterrupt: a second Ctrl-C.
        """
        with ExitStack() as stack:
            if self._ui.live:
                self._live = stack.enter_context(
                    Live(live_view(self.view), console=self._ui.err, auto_refresh=False, redirect_stdout=False)
                )
            while not self.view.ended:
                try:
                    self._listen(TICK_S)
                except KeyboardInterrupt:
                    self._interrupt()
            self._listen(AFTER_S)
            self._draw()
        return self.view

    def _interrupt(self) -> None:
        if not self._session.local:
            raise Detached
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self._ui.say("Stopping the job cleanly; press Ctrl-C again to leave at once.")
        self._session.client.request("stop", job=self.view.job)

    def _listen(self, seconds: float) -> None:
        for heard in self._session.client.follow(seconds):
            self._take(heard)
            if self._look is not None:
                self._look(self.view)
        self._draw()

    def _take(self, heard: Heard) -> None:
        if isinstance(heard.message, CoordinatorStatus):
            if heard.message.state != "online" and not heard.retained:
                self._ui.say("The coordinator went away; the job goes on when it is back. Ctrl-C leaves.")
        elif heard.fields.get("job") == self.view.job and not (self._stale and heard.retained):
            # After the first live message, a retained one comes from a new connection and is the present truth.
            self._stale = False
            self.view.take(heard.message)
            if self._live is None:
                self._line(heard.message)

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(live_view(self.view), refresh=True)

    def _line(self, message: Message) -> None:
        """Write a line for each event and each new phase, and every few seconds."""
        now = time.monotonic()
        if isinstance(message, Event):
            self._ui.say(event_line(message))
        elif (isinstance(message, JobState) and self._new_phase(message)) or now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            self._ui.say(progress_line(self.view))

    _phase = ""

    def _new_phase(self, state: JobState) -> bool:
        changed = state.phase != self._phase
        self._phase = state.phase
        return changed


def check_end(view: JobView) -> None:
    """Raise if the job failed.

    Raises:
        AsteroidError: the job's own reason, remedy and exit code.
    """
    state = view.state
    if state is not None and state.phase == "failed":
        raise CoordinatorError(
            clean(state.reason) or f"Job {view.job} failed.",
            clean(state.remedy) or f"`asteroid status {view.job}` shows its story.",
            state.exit_code or AsteroidError.exit_code,
        )
