"""``asteroid jobs``: all jobs that the coordinator, or the state directory, knows."""

from __future__ import annotations

from typing import Any

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.local import local_store
from asteroid_coordinator.cli.render import jobs_table
from asteroid_coordinator.cli.session import maybe_coordinator

EXAMPLES = (
    ("asteroid jobs", "where each one is"),
    ("asteroid jobs --json | jq -r '.[] | select(.phase == \"running\") | .job'", "those that run"),
)


def jobs(ui: Ui) -> None:
    """List the jobs.

    Without a coordinator on the broker, those in the state directory of this machine.
    """
    with maybe_coordinator(ui) as session:
        found: list[dict[str, Any]]
        if session is not None:
            found = list(session.client.request("jobs").data.get("jobs", []))
        else:
            with local_store(ui) as store:
                found = store.states() if store is not None else []
    if not found and not ui.json:
        ui.say("No jobs yet. `asteroid train examples/digits.toml` makes one.")
        return
    ui.result(found, jobs_table(found))
