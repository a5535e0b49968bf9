"""``asteroid plan``: who would train what, how long a round would take, and how it would look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.gantt import gantt_svg, gantt_text
from asteroid_coordinator.cli.jobfile import make_importable, read_job
from asteroid_coordinator.cli.render import plan_sentence, plan_table
from asteroid_coordinator.cli.session import running_coordinator
from asteroid_coordinator.cli.train import JobFile, Overrides, Planner, follow, submit
from asteroid_coordinator.simulator.engine import simulate
from asteroid_coordinator.simulator.trace import Trace
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.wire.messages import PlanSummary

EXAMPLES = (
    ("asteroid plan examples/digits.toml", "stages, shares, memory, time, and a Gantt chart"),
    ("asteroid plan examples/digits.toml --svg round.svg", "the chart as a picture"),
    ("asteroid plan examples/digits.toml --trace round.json", "for chrome://tracing or Perfetto"),
    ("asteroid plan job.toml --set plan.stages=3", "what if"),
)

Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the Gantt chart there.")]
TraceFile = Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Write a Chrome trace there.")]


def plan(
    ui: Ui, job: JobFile, overrides: Overrides = None, planner: Planner = None, svg: Svg = None, trace: TraceFile = None
) -> None:
    """Plan a job without training it.

    Devices that have no profile of the model yet are measured first.
    """
    spec = read_job(job, overrides or (), planner)
    make_importable(job)
    for file in (svg, trace):
        check_file(file)
    with running_coordinator(ui) as session:
        view = follow(ui, session, submit(session, "plan", spec))
    summary = view.plan
    if summary is None or summary.costs is None:
        raise AsteroidError("The coordinator sent no plan.", "Run `asteroid doctor`.")
    simulated = simulate(summary.plan, summary.costs)
    if svg is not None:
        write_file(svg, gantt_svg(summary.plan, simulated))
        ui.say(f"Wrote {svg}.")
    if trace is not None:
        write_file(trace, simulated.chrome())
        ui.say(f"Wrote {trace}.")
    if ui.json:
        ui.data(plan_facts(summary, simulated))
    else:
        show_plan(ui, summary, simulated)


def show_plan(ui: Ui, summary: PlanSummary, trace: Trace) -> None:
    """Print the plan for people."""
    ui.show(plan_table(summary), Text(plan_sentence(summary)), gantt_text(summary.plan, trace, ui.out.width))


def plan_facts(summary: PlanSummary, trace: Trace) -> dict[str, Any]:
    """The plan for programs."""
    return {
        **summary.model_dump(mode="json", by_alias=True),
        "round_s": trace.round_s,
        "busy": {device: round(trace.busy(device), 4) for device in summary.plan.devices},
        "communicating": {device: round(trace.parts(device).communicating, 4) for device in summary.plan.devices},
        "waiting": {device: round(trace.parts(device).waiting, 4) for device in summary.plan.devices},
        "peak_alive": trace.peak_alive,
    }


def check_file(path: Path | None) -> None:
    """Refuse a file that cannot be written before devices have measured for minutes.

    Raises:
        InputError: says why not.
    """
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a directory" if path.is_dir() else f"there is no directory {path.absolute().parent}"
        raise InputError(f"{path} cannot be written: {why}.", "Give another file.")


def write_file(path: Path, text: str) -> None:
    """Write a file that a person named.

    Raises:
        InputError: says why not.
    """
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", "Give another file.") from None
