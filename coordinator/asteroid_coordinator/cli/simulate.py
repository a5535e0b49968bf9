"""``asteroid simulate``: what planners make of a model on devices that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from asteroid_coordinator.catalog.comparing import (
    PLANNERS,
    Case,
    Row,
    check_planners,
    compare,
    facts,
    micro_text,
    plans_text,
)
from asteroid_coordinator.catalog.devices import KINDS
from asteroid_coordinator.catalog.environments import (
    DEFAULT_BATCH,
    ENVIRONMENTS,
    NETWORKS,
    SGD,
    SPEEDS,
    Cluster,
    NetworkKind,
    environment,
    own_cluster,
)
from asteroid_coordinator.catalog.models import OTHERS, PAPER, is_on_file, model, of_job
from asteroid_coordinator.catalog.naming import unknown
from asteroid_coordinator.catalog.work import ModelWork
from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.gantt import gantt_svg, gantt_text
from asteroid_coordinator.cli.jobfile import make_importable, read_job
from asteroid_coordinator.cli.plan import Svg, TraceFile, check_file, write_file
from asteroid_coordinator.cli.render import table
from asteroid_coordinator.cli.text import clean, duration, megabytes
from asteroid_coordinator.planning import micro_sizes
from asteroid_core.errors import InputError

EXAMPLES = (
    ("asteroid simulate", "all planners, MobileNetV2 on six boards at 100 Mbit/s"),
    ("asteroid simulate --model resnet-50 --environment C", "another model, other boards"),
    ("asteroid simulate --sweep", "from 25 to 1000 Mbit/s"),
    ("asteroid simulate --devices raspberry-pi-5:3,jetson-nano", "your own cluster, before you buy it"),
    ("asteroid simulate --job examples/digits.toml", "your own model and batch"),
    ("asteroid simulate --list", "devices, environments and models, with their figures"),
)

_WIDE = 110
"""Columns from which a table has all of its columns."""
_DEFAULT_MODEL, _DEFAULT_ENVIRONMENT, _DEFAULT_MBIT = "mobilenet-v2", "B", 100.0
_ALL = "all"

Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", metavar="NAME", help="Model of the zoo, or all; may be given again."),
]
Environments = Annotated[
    list[str] | None,
    typer.Option("--environment", "-e", metavar="NAME", help="A, B, C, D, or all; may be given again."),
]
Devices = Annotated[
    str | None, typer.Option("--devices", metavar="KIND:COUNT,...", help="A cluster of your own instead.")
]
Speeds = Annotated[
    list[str] | None, typer.Option("--mbit", metavar="N", help="Speed of each link in Mbit/s; may be given again.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="25, 50, 100, 250, 500 and 1000 Mbit/s.")]
Reach = Annotated[str, typer.Option("--network", metavar="direct|hub", help="Through a switch, or through the broker.")]
HubSpeed = Annotated[
    float | None, typer.Option("--hub-mbit", metavar="N", help="Speed of the broker's link; default: as the others.")
]
Planners = Annotated[
    list[str] | None, typer.Option("--planner", "-p", metavar="NAME", help="Default: all; may be given again.")
]
Batch = Annotated[
    int | None, typer.Option("--batch", metavar="N", min=1, help=f"Samples of a round; default {DEFAULT_BATCH}.")
]
Job = Annotated[
    Path | None, typer.Option("--job", metavar="JOB.toml", help="Model, batch and optimizer of a job instead.")
]
Catalog = Annotated[bool, typer.Option("--list", help="Show devices, environments, models, planners; -v: all reasons.")]


def simulate(
    ui: Ui,
    models: Models = None,
    environments: Environments = None,
    devices: Devices = None,
    mbit: Speeds = None,
    sweep: Sweep = False,
    network: Reach = "direct",
    hub_mbit: HubSpeed = None,
    planner: Planners = None,
    batch: Batch = None,
    job: Job = None,
    svg: Svg = None,
    trace: TraceFile = None,
    catalog: Catalog = False,
) -> None:
    """Compare planners on devices that need not be there.

    Every plan is judged by one simulator. Peaks of the devices are data-sheet figures, their efficiencies and the
    environments are assumptions: see --list. No broker is needed.
    """
    if catalog:
        _show_catalog(ui)
        return
    planners = _words(planner) or list(PLANNERS)
    check_planners(planners)
    clusters = _clusters(_words(environments), devices, _speeds(mbit, sweep), _network(network), hub_mbit)
    for file in (svg, trace):
        check_file(file)
    names = _model_names(_words(models), job)
    if (count := len(names) * len(clusters)) > 1 and (svg or trace):
        raise InputError(
            f"--svg and --trace are of one round, but there are {count} cases.",
            "Give one model, one environment and one speed.",
        )
    works = [_model(ui, name, job) for name in names]
    cases = [_case(work, cluster, batch, job) for work in works for cluster in clusters]
    results = [(case, rows) for case in _told(ui, cases) for rows in [_compare(ui, case, planners)]]
    _write(ui, results[0][1][0], svg, trace)
    if ui.json:
        ui.data({"cases": [facts(case, rows) for case, rows in results]})
        return
    for number, (_, group) in enumerate(groupby(results, lambda result: (result[0].model.name, result[0].cluster.id))):
        _show(ui, list(group), number)
    if len(results) == 1 and (verdict := results[0][1][0].verdict).trace is not None:
        ui.show(
            Text(f"\nA round of {planners[0]}:", style="bold"),
            gantt_text(verdict.plans[0], verdict.trace, ui.out.width),
        )


# What is asked


def _words(given: Sequence[str] | None) -> list[str]:
    """``--x a,b --x c`` as a, b, c, each once."""
    words = [word.strip() for text in given or () for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


def _network(name: str) -> NetworkKind:
    for known in NETWORKS:
        if name == known:
            return known
    raise unknown("network", name, NETWORKS)


def _speeds(given: Sequence[str] | None, sweep: bool) -> list[float]:
    words = _words(given)
    if sweep and words:
        raise InputError("--sweep has speeds of its own.", "Leave out --mbit, or give --mbit several times.")
    if sweep:
        return list(SPEEDS)
    speeds = []
    for word in words:
        try:
            speeds.append(float(word))
        except ValueError:
            raise InputError(f"--mbit {word!r} is not a number.", "Write for example --mbit 100.") from None
    return list(dict.fromkeys(speeds)) or [_DEFAULT_MBIT]


def _clusters(
    names: Sequence[str], devices: str | None, speeds: Sequence[float], network: NetworkKind, hub_mbit: float | None
) -> list[Cluster]:
    if hub_mbit is not None and network == "direct":
        raise InputError(
            "--hub-mbit is the speed of the broker's link, which direct links do not use.", "Add --network hub."
        )
    if devices is not None:
        if names:
            raise InputError("--devices and --environment both say which devices there are.", "Give one of them.")
        return [own_cluster(devices, speed, network, hub_mbit) for speed in speeds]
    if _ALL in names:
        names = list(ENVIRONMENTS)
    ids = list(dict.fromkeys(name.upper() for name in names)) or [_DEFAULT_ENVIRONMENT]
    return [environment(id, speed, network, hub_mbit) for id in ids for speed in speeds]


def _model_names(names: Sequence[str], job: Path | None) -> list[str]:
    if job is not None:
        if names:
            raise InputError("--job and --model both say which model it is.", "Give one of them.")
        return [str(job)]
    if _ALL in names:
        return list(PAPER)
    for name in names:
        if name not in PAPER and name not in OTHERS:
            raise unknown("model", name, (*PAPER, *OTHERS))
    return list(names) or [_DEFAULT_MODEL]


def _model(ui: Ui, name: str, job: Path | None) -> ModelWork:
    if job is not None:
        spec = read_job(job)
        make_importable(job)
        with _doing(ui, f"Exporting the model of {job} ..."):
            return of_job(spec)
    if is_on_file(name):
        return model(name)
    with _doing(ui, f"Exporting {name} ..."):
        return model(name)


def _case(work: ModelWork, cluster: Cluster, batch: int | None, job: Path | None) -> Case:
    if job is None:
        return Case(work, cluster, batch or DEFAULT_BATCH, SGD)
    spec = read_job(job, () if batch is None else (f"train.batch={batch}",))
    return Case(work, cluster, spec.train.batch, spec.optimizer, micro_sizes(spec))


# What is done


def _told(ui: Ui, cases: Sequence[Case]) -> Iterator[Case]:
    """The cases; says which one comes if there are several and nobody sees a moving picture."""
    for number, case in enumerate(cases, 1):
        if len(cases) > 1 and not ui.live:
            ui.say(f"{number}/{len(cases)}: {case}")
        yield case


def _compare(ui: Ui, case: Case, planners: Sequence[str]) -> list[Row]:
    if not ui.live:
        return compare(case, planners)
    with ui.err.status("") as status:

        def tell(planner: str) -> None:
            status.update(Text(f"{case}: {planner} ({list(planners).index(planner) + 1} of {len(planners)})"))

        return compare(case, planners, tell)


@contextmanager
def _doing(ui: Ui, text: str) -> Iterator[None]:
    if ui.live:
        with ui.err.status(Text(text)):
            yield
    else:
        ui.say(text)
        yield


def _write(ui: Ui, row: Row, svg: Path | None, trace: Path | None) -> None:
    verdict = row.verdict
    if svg is None and trace is None:
        return
    if verdict.trace is None:
        raise InputError(f"There is no round to draw: {verdict.why}", "Ask for another planner, model or cluster.")
    content: dict[Path | None, Callable[[], str]] = {
        svg: lambda: gantt_svg(verdict.plans[0], verdict.trace) if verdict.trace else "",
        trace: lambda: verdict.trace.chrome() if verdict.trace else "",
    }
    for file, make in content.items():
        if file is not None:
            write_file(file, make())
            ui.say(f"Wrote {file}.")


# What is shown


def _show(ui: Ui, results: Sequence[tuple[Case, list[Row]]], number: int) -> None:
    """One model on one cluster: a table of a speed, or throughput over several speeds."""
    case, rows = results[0]
    named = case.cluster.id in ENVIRONMENTS
    title = Text("\n" if number else "")
    title.append(f"{clean(case.model.name)} on {case.cluster.id if named else case.cluster.devices}", "bold")
    speed = f" at {case.cluster.mbit:g} Mbit/s" if len(results) == 1 else ""
    via = "" if case.cluster.network == "direct" else " through the broker"
    title.append(f"{speed}{via}, batch {case.batch}")
    if named:
        title.append(f"\n{case.cluster.id}: {case.cluster.devices}", "dim")
    ui.show(title, _one_speed(ui, case, rows) if len(results) == 1 else _many_speeds(results))
    for case, rows in results:
        ui.show(*(Text(note, style="yellow") for note in notes(case, rows, len(results) > 1)))
    if len(results) == 1 and len(rows) > 1:
        side = " &&: side by side." if any(len(row.verdict.plans) > 1 for row in rows) else ""
        legend = f"Speed-up: how many times as fast {rows[0].planner} is. Busy: mean of the plan's devices.{side}"
        ui.show(Text(legend, style="dim"))


def _one_speed(ui: Ui, case: Case, rows: Sequence[Row]) -> Table:
    wide = ui.out.width >= _WIDE
    titles = ["PLANNER", "STAGES", "MICRO", "SAMPLES/S", "ROUND", "SPEED-UP", "MEMORY", "BUSY"]
    if not wide:
        titles = [title for title in titles if title not in ("MICRO", "ROUND")]
    made = table(*titles, right=("MICRO", "SAMPLES/S", "ROUND", "SPEED-UP", "BUSY"))
    _wrapping(made, titles.index("STAGES"))
    for number, row in enumerate(rows):
        fits = row.verdict.round_s is not None
        cells = {
            "PLANNER": Text(row.planner, style="bold" if number == 0 else ""),
            "STAGES": Text(plans_text(row.verdict, case.cluster) if fits else "does not fit", "" if fits else "red"),
            "MICRO": Text(micro_text(row.verdict)),
            "SAMPLES/S": Text(rate(row.samples_per_s)),
            "ROUND": Text(duration(row.verdict.round_s)),
            "SPEED-UP": _speed_up(row.speed_up, number == 0),
            "MEMORY": _memory(row, wide),
            "BUSY": Text(f"{row.busy * 100:.0f} %" if row.busy is not None else "-"),
        }
        made.add_row(*(cells[title] for title in titles))
    return made


def _wrapping(made: Table, number: int) -> Table:
    """Let one column have the space that is left, and break its lines."""
    made.columns[number].no_wrap = False
    made.columns[number].ratio = 1
    made.expand = True
    return made


def _many_speeds(results: Sequence[tuple[Case, list[Row]]]) -> Table:
    """Samples per second; a column a speed."""
    titles = [f"{case.cluster.mbit:g}" for case, _ in results]
    made = table("SAMPLES/S AT MBIT/S", *titles, right=titles)
    for number, row in enumerate(results[0][1]):
        cells = []
        for _, rows in results:
            best = max((r.samples_per_s or 0.0 for r in rows), default=0.0)
            here = rows[number].samples_per_s
            cells.append(Text(rate(here), style="green" if here is not None and here >= best * (1 - 1e-9) else ""))
        made.add_row(Text(row.planner, style="bold" if number == 0 else ""), *cells)
    return made


def notes(case: Case, rows: Sequence[Row], with_speed: bool = False) -> list[str]:
    """Sentences: who fits nowhere and why, and who is faster than the first."""
    where = f" at {case.cluster.mbit:g} Mbit/s" if with_speed else ""
    out = []
    for row in rows:
        if row.verdict.round_s is None:
            out.append(f"{row.planner}{where}: {clean(row.verdict.why)}")
        elif row.speed_up is not None and row.speed_up < 1 - 1e-9:
            out.append(f"{row.planner}{where} is {1 / row.speed_up:.3g} times as fast as {rows[0].planner}.")
    return out


def rate(value: float | None) -> str:
    """Samples per second with three digits: ``2640``, ``16.2``; ``-`` for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _speed_up(value: float | None, first: bool) -> Text:
    if value is None or first:
        return Text("-", style="dim")
    return Text(f"{value:.2f}x" if value < 10 else f"{value:.1f}x", style="yellow" if value < 1 - 1e-9 else "")


def _memory(row: Row, wide: bool) -> Text:
    if row.fullest is None:
        return Text("-")
    device, need, lent = row.fullest
    style = "red" if need > lent else "yellow" if need > 0.9 * lent else ""
    if not wide:
        return Text(f"{need / lent * 100:.0f} % {device}", style=style)
    return Text(f"{megabytes(need)} of {megabytes(lent)}, {device}", style=style)


# What there is


def _show_catalog(ui: Ui) -> None:
    works = [model(name) for name in PAPER]
    document = {
        "devices": {
            kind.id: {
                "name": kind.name,
                **{name: {"value": figure.value, "why": figure.why} for name, figure in kind.figures().items()},
            }
            for kind in KINDS.values()
        },
        "environments": ENVIRONMENTS,
        "models": {work.name: work.describe() for work in works} | {name: w.samples for name, w in OTHERS.items()},
        "planners": list(PLANNERS),
    }
    made = table("DEVICE", "PEAK GFLOP/S", "MEMORY GB/S", "LENT", "OF IT RUNTIME", "LAUNCH", right=("PEAK GFLOP/S",))
    for kind in KINDS.values():
        made.add_row(
            kind.id,
            f"{kind.peak_flops.value / 1e9:.0f}",
            f"{kind.bandwidth.value / 1e9:.1f}",
            megabytes(kind.lent_mb.value),
            megabytes(kind.runtime_mb.value),
            f"{kind.launch_s.value * 1e6:.0f} us",
        )
    places = table("ENVIRONMENT", "DEVICES")
    for id in ENVIRONMENTS:
        places.add_row(id, environment(id, _DEFAULT_MBIT).devices)
    things = _wrapping(table("MODEL", ""), 1)
    for work in works:
        things.add_row(work.name, work.describe())
    for name, workload in OTHERS.items():
        things.add_row(name, f"exported when asked for, {workload.samples}")
    if ui.json:
        ui.data(document)
        return
    ui.show(made, "", places, "", things, "", Text(f"Planners: {', '.join(PLANNERS)}"))
    if ui.verbose:
        for kind in KINDS.values():
            reasons = _wrapping(table(kind.id.upper(), "", "FROM", right=("",)), 2)
            for name, figure in kind.figures().items():
                reasons.add_row(name, f"{figure.value:.4g}", figure.why)
            ui.show("", reasons)
    else:
        ui.say("Peaks are data-sheet figures, the rest are assumptions: --list -v says the source of each.")
