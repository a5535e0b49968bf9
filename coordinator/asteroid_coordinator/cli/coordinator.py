"""``asteroid coordinator``: serve requests in the foreground, as systemd wants it."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.session import in_process, maybe_coordinator
from asteroid_core.errors import InputError
from asteroid_core.notify import notify, watchdog_interval

EXAMPLES = (
    ("asteroid coordinator", "in the foreground, until Ctrl-C"),
    ("systemctl enable --now asteroid-coordinator", "as a service"),
)


def coordinator(ui: Ui) -> None:
    """Run the coordinator in the foreground.

    It takes jobs from `asteroid train` on any machine that reaches the broker, takes over those that a coordinator
    left running when it died, and resumes stopped ones on request.
    """
    with maybe_coordinator(ui) as session:
        if session is not None:
            raise InputError(
                f"A coordinator is already online on the broker at {ui.settings.address}.",
                "One is enough: use it, or stop it first.",
            )
    ended = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        ended.set()

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with in_process(ui, take_over=True):
            notify(f"READY=1\nSTATUS=serving the broker at {ui.settings.address}")
            ui.say(f"Coordinator online on the broker at {ui.settings.address}; state in {ui.settings.state_dir}.")
            if ui.json:  # a script may wait for this line
                ui.data({"state": "online", "broker": ui.settings.address, "state_dir": str(ui.settings.state_dir)})
            while not ended.wait(watchdog_interval()):
                notify("WATCHDOG=1")
            notify("STOPPING=1")
            ui.say("Stopping; running jobs can be resumed.")
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
