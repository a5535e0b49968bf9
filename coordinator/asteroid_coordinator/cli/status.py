"""``asteroid status``: one job in full, or its live view."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.jobview import RECOVERED
from asteroid_coordinator.cli.local import jobs_source
from asteroid_coordinator.cli.render import event_line, jobs_table, recoveries_table
from asteroid_coordinator.cli.session import found_coordinator
from asteroid_coordinator.cli.stop import JobName
from asteroid_coordinator.cli.train import finish, follow
from asteroid_core.ids import job_id

EXAMPLES = (
    ("asteroid status digits", "where it is, and its story"),
    ("asteroid status digits --watch", "follow it; Ctrl-C leaves it running"),
)


def status(
    ui: Ui,
    job: JobName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it until it ends.")] = False,
) -> None:
    """Show one job.

    Without a coordinator on the broker, from the state directory of this machine.
    """
    name = job_id(job)
    if watch:
        with found_coordinator(ui, "There is nothing to watch") as session:
            session.client.request("status", job=name)
            session.client.watch(name)
            finish(ui, follow(ui, session, name, fresh=False))
        return
    with jobs_source(ui) as source:
        facts, story = source.state(name), source.story(name)
    if ui.json:
        recoveries = [e.data for e in story if e.kind == RECOVERED]
        events = [e.model_dump(mode="json", by_alias=True) for e in story]
        ui.data({**facts, "recoveries": recoveries, "events": events})
        return
    recovered = recoveries_table(story)
    shown: list[RenderableType] = ["", "Recoveries", recovered, ""] if recovered is not None else []
    ui.show(jobs_table([facts]), *_more(facts), *shown, *(event_line(e) for e in story))


def _more(facts: dict[str, Any]) -> list[str]:
    out = []
    if facts.get("remedy"):
        out.append(str(facts["remedy"]))
    if facts.get("model_file"):
        out.append(f"model file: {facts['model_file']}")
    return out
