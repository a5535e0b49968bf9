"""``asteroid train``: submit a job, follow it, say what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.follow import Detached, Follower, Look, check_end
from asteroid_coordinator.cli.jobfile import make_importable, read_job
from asteroid_coordinator.cli.jobview import JobView
from asteroid_coordinator.cli.render import result_table
from asteroid_coordinator.cli.session import Session, found_coordinator, running_coordinator
from asteroid_core.spec import JobSpec

EXAMPLES = (
    ("asteroid train examples/digits.toml", "on every ready device, best plan"),
    ("asteroid train job.toml --set train.rounds=20 --set optimizer.lr=0.1", "try something"),
    ("asteroid train job.toml --set plan.order=gpipe", "all forwards, then all backwards"),
    ("asteroid train job.toml --detach", "hand it to the coordinator and leave"),
)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file, see docs/jobs.md.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="SECTION.FIELD=VALUE", help="Override a field of the job.")
]
Planner = Annotated[str | None, typer.Option("--planner", metavar="NAME", help="Short for --set plan.planner=NAME.")]
NOBODY = "Nobody would train it after this command has left"


def train(
    ui: Ui,
    job: JobFile,
    overrides: Overrides = None,
    planner: Planner = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the job's name and leave.")] = False,
) -> None:
    """Train a job and show how it goes.

    If no coordinator is on the broker, one runs in this process. Ctrl-C then stops the job so that `asteroid resume`
    goes on with it; if the coordinator is elsewhere, Ctrl-C only leaves, and the job goes on.
    """
    spec = read_job(job, overrides or (), planner)
    make_importable(job)
    if detach:
        with found_coordinator(ui, NOBODY) as session:
            name = submit(session, "submit", spec)
        ui.result({"job": name}, name)
        ui.say(f"Submitted. `asteroid status {name} --watch` follows it, `asteroid stop {name}` stops it.")
        return
    with running_coordinator(ui) as session:
        finish(ui, follow(ui, session, submit(session, "submit", spec)))


def submit(session: Session, verb: Literal["submit", "plan", "profile"], spec: JobSpec) -> str:
    """Hand a job to the coordinator; returns the name that it was given."""
    # The coordinator may choose another name, and says a lot before its answer is here: listen to all jobs.
    session.client.watch("+")
    return session.client.request(verb, job=spec.name, spec=spec).job or spec.name


def follow(ui: Ui, session: Session, name: str, *, fresh: bool = True, look: Look | None = None) -> JobView:
    """Follow a job to its end.

    Args:
        ui: where to draw.
        session: whom to listen to.
        name: the job.
        fresh: it has just been submitted: what the broker kept is of an earlier job of this name.
        look: called after each message.

    Raises:
        AsteroidError: the job failed; carries its reason, remedy and exit code.
        Exit: Ctrl-C.
    """
    follower = Follower(ui, session, name, fresh=fresh, look=look)
    try:
        view = follower.run()
    except Detached:
        ui.say(f"Left; {name} goes on. `asteroid status {name} --watch` comes back, `asteroid stop {name}` stops it.")
        raise typer.Exit(130) from None
    if follower.interrupted:
        _say_stopped(ui, view)
        raise typer.Exit(130)
    if view.state is not None and view.state.phase == "failed" and ui.json:
        ui.data(view.summary())
    check_end(view)
    return view


def finish(ui: Ui, view: JobView) -> None:
    """Print what came out."""
    ui.result(view.summary(), result_table(view))
    if view.state is not None and view.state.phase == "stopped":
        _say_stopped(ui, view)


def _say_stopped(ui: Ui, view: JobView) -> None:
    saved = view.state.saved if view.state is not None else 0
    where = f"from round {saved}" if saved else "from the beginning"
    ui.say(f"Stopped at round {view.completed}. `asteroid resume {view.job}` goes on {where}.")
