"""``asteroid resume``: go on with a job from its last checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.session import found_coordinator, running_coordinator
from asteroid_coordinator.cli.stop import JobName
from asteroid_coordinator.cli.train import NOBODY, finish, follow
from asteroid_core.ids import job_id

EXAMPLES = (
    ("asteroid resume digits", "go on and follow it"),
    ("asteroid resume digits --detach", "go on, and leave it to the coordinator"),
)


def resume(
    ui: Ui,
    job: JobName,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow it.")] = False,
) -> None:
    """Go on with a stopped, failed or interrupted job.

    If no coordinator is on the broker, one runs in this process and reads the job from the state directory.
    """
    name = job_id(job)
    if detach:
        with found_coordinator(ui, NOBODY) as session:
            answer = session.client.request("resume", job=name)
        ui.result({"job": name, **answer.data}, name)
        ui.say(f"It goes on. `asteroid status {name} --watch` follows it.")
        return
    with running_coordinator(ui) as session:
        session.client.watch(name)
        session.client.request("resume", job=name)
        finish(ui, follow(ui, session, name))
