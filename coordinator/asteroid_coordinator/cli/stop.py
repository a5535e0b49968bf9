"""``asteroid stop``: end a job so that it can be resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.session import found_coordinator
from asteroid_core.ids import job_id

EXAMPLES = (("asteroid stop digits", "the job keeps its last checkpoint; `asteroid resume digits` goes on"),)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, see `asteroid jobs`.")]


def stop(ui: Ui, job: JobName) -> None:
    """Stop a job; it can be resumed."""
    name = job_id(job)
    with found_coordinator(ui, "Nothing runs") as session:
        answer = session.client.request("stop", job=name)
    if ui.json:
        ui.data({"job": name, **answer.data})
    ui.say(f"Job {name} stops. `asteroid resume {name}` goes on with it.")
