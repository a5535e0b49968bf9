"""``asteroid profile``: measure each layer of a job's model on each device."""

from __future__ import annotations

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.jobfile import make_importable, read_job
from asteroid_coordinator.cli.jobview import JobView
from asteroid_coordinator.cli.render import event_line
from asteroid_coordinator.cli.session import running_coordinator
from asteroid_coordinator.cli.text import clean
from asteroid_coordinator.cli.train import JobFile, Overrides, follow, submit

EXAMPLES = (("asteroid profile examples/digits.toml", "measure, and keep the result for `plan` and `train`"),)


def profile(ui: Ui, job: JobFile, overrides: Overrides = None) -> None:
    """Measure the layers of a model on every ready device.

    `plan` and `train` do this by themselves where no profile is kept yet.
    """
    spec = read_job(job, overrides or ())
    make_importable(job)
    with running_coordinator(ui) as session:
        view = follow(ui, session, submit(session, "profile", spec))
    if ui.json:
        ui.data(_facts(view))
    else:
        ui.show("\n".join(event_line(event) for event in view.events if event.kind.startswith("profil")))


def _facts(view: JobView) -> dict[str, object]:
    lines = [{"kind": e.kind, "text": clean(e.text), "data": e.data} for e in view.events]
    return {"job": view.job, "phase": view.state.phase if view.state else None, "events": lines}
