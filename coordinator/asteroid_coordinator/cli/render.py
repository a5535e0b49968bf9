"""Tables and panels for people: devices, plan, jobs, live view, result. Values in, rich renderables out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asteroid_coordinator.cli.jobview import RECOVERED, JobView
from asteroid_coordinator.cli.text import bar, clean, curve, duration, megabytes, percent
from asteroid_coordinator.cluster.registry import Device
from asteroid_core import PROTOCOL
from asteroid_core.wire.messages import Event, PlanSummary

_STATE_STYLE = {
    "ready": "green",
    "training": "cyan",
    "running": "cyan",
    "done": "green",
    "lost": "red",
    "failed": "red",
    "offline": "dim",
    "stopped": "yellow",
    "paused": "yellow",
    "draining": "yellow",
}


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A plain table, no frame, as ``kubectl`` prints it."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


def state_text(state: str) -> Text:
    """A state word in its colour."""
    return Text(clean(state), style=_STATE_STYLE.get(state, ""))


def devices_table(devices: Iterable[Device], jobs: Mapping[str, str], ages: Mapping[str, float | None]) -> Table:
    """One row a device.

    Args:
        devices: what is known of them.
        jobs: device to the job that it works on.
        ages: device to seconds since it was heard of; None if only its retained messages were.
    """
    made = table("NAME", "STATE", "AGE", "CORES", "MEMORY", "CPU", "TEMP", "BACKENDS", "JOB", right=("CORES", "MEMORY"))
    for device in devices:
        info, feel = device.info, device.telemetry
        age = ages.get(device.name)
        cpu = feel.cpu_percent if feel else None
        heat = feel.temperature_c if feel else None
        hot = bool(feel and feel.throttled)
        made.add_row(
            clean(device.name),
            state_text(device.status.state if device.status else "unknown"),
            duration(age) if age is not None else "-",
            f"{info.cores:g}" if info else "-",
            megabytes(info.budget_mb) if info else "-",
            f"{cpu:.0f} %" if cpu is not None else "-",
            Text(f"{heat:.0f} °C" + (" slowed" if hot else ""), style="red" if hot else "") if heat else Text("-"),
            clean(", ".join(f"{k} {v}".strip() for k, v in sorted(info.backends.items())) or "none") if info else "-",
            clean(jobs.get(device.name, "")),
        )
    return made


def device_notes(devices: Iterable[Device]) -> list[str]:
    """A sentence for each device that cannot take part although it is there, or that went with a reason."""
    out = []
    for device in devices:
        status = device.status
        if status is None:
            out.append(f"{device.name} has not said its state; is its agent of this version running?")
        elif status.protocol != PROTOCOL:
            older = "the agent" if status.protocol < PROTOCOL else "this command and the coordinator"
            out.append(
                f"{device.name} speaks protocol version {status.protocol}, this is version {PROTOCOL}: upgrade {older}."
            )
        elif status.state in {"lost", "offline", "draining"} and status.reason:
            out.append(f"{device.name} is {status.state}: {clean(status.reason)}")
    return out


def plan_table(summary: PlanSummary) -> Table:
    """Stages, devices, shares, K (micro-batches alive at once), and memory against budget."""
    backups = any(stage.backups for stage in summary.plan.stages)
    titles = ["STAGE", "LAYERS", "DEVICE", "SHARE", "K", "MEMORY", "OF BUDGET"]
    made = table(*([*titles[:5], "BACKUP", *titles[5:]] if backups else titles))
    memory = {m.device: m for m in summary.memory}
    plan = summary.plan
    for number, stage in enumerate(plan.stages):
        for row, share in enumerate(stage.shares):
            need = memory.get(share.device)
            part = need.need_mb / need.budget_mb if need and need.budget_mb > 0 else 0.0
            style = "red" if part > 1 else "yellow" if part > 0.9 else "green"
            made.add_row(
                str(number) if row == 0 else "",
                f"{stage.lo}-{stage.hi - 1}" if row == 0 else "",
                clean(share.device),
                f"{share.samples} of {plan.micro_size}",
                str(stage.warm_up) if row == 0 else "",
                *([clean(", ".join(stage.backups)) if row == 0 else ""] if backups else []),
                f"{megabytes(need.need_mb)} / {megabytes(need.budget_mb)}" if need else "-",
                Text.assemble((bar(part, 8), style), f" {part * 100:.0f} %") if need else Text("-"),
            )
    return made


def plan_sentence(summary: PlanSummary) -> str:
    """The plan's numbers in one line."""
    plan = summary.plan
    predicted = f", predicted round time {duration(plan.predicted_s)}" if plan.predicted_s is not None else ""
    rate = f" ({plan.batch / plan.predicted_s:.0f} samples/s)" if plan.predicted_s else ""
    return (
        f"{len(plan.stages)} stage{'s' * (len(plan.stages) > 1)} on {len(plan.devices)} "
        f"device{'s' * (len(plan.devices) > 1)}, {summary.layers} layers, {plan.micro_count} micro-batches of "
        f"{plan.micro_size} samples, order {plan.order}, by planner {plan.planner or 'unknown'}{predicted}{rate}"
    )


def jobs_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """One row a job, from ``JobState``-like mappings."""
    made = table(
        "JOB", "PHASE", "ROUNDS", "DURABLE", "SAVED", "GENERATION", "REASON", right=("ROUNDS", "DURABLE", "SAVED")
    )
    for job in jobs:
        made.add_row(
            clean(job.get("job", "?")),
            state_text(str(job.get("phase", "?"))),
            f"{job.get('completed', 0)}/{job.get('rounds', 0)}",
            str(job.get("durable", 0)),
            str(job.get("saved", 0)),
            str(job.get("generation", 0)),
            Text(clean(job.get("reason", "")), overflow="ellipsis"),
        )
    return made


def recoveries_table(story: Iterable[Event]) -> Table | None:
    """One row a recovery: what was lost, what moved from whom to whom, how long each part took; None without any."""
    columns = ("LOST", "WAY", "ROUND", "MOVED", "PLAN", "MOVE", "RESTORE", "AGAIN", "IN ALL")
    made = table(*columns, "LAYERS", right=columns[2:])
    for event in story:
        if event.kind == RECOVERED:
            facts = event.data
            seconds = {name: duration(_number(facts, f"{name}_s")) for name in ("move", "restore", "again", "total")}
            made.add_row(
                clean(", ".join(map(str, facts.get("devices", ())))),
                clean(facts.get("way", "")),
                clean(facts.get("round", "-")),
                f"{_number(facts, 'moved_bytes') / 1e6:.1f} MB",
                duration(sum(_number(facts, f"{name}_s") for name in ("halt", "plan", "build"))),
                seconds["move"],
                seconds["restore"],
                f"{clean(facts.get('again', 0))} in {seconds['again']}" if facts.get("again") else "-",
                seconds["total"],
                Text(clean(moves_text(facts.get("moves", ())) or "none"), overflow="ellipsis"),
            )
    return made if made.row_count else None


def moves_text(moves: Sequence[Mapping[str, Any]]) -> str:
    """``0-3 pi-1 to pi-2, 4 pi-1 to pi-3``: which layers went from whom to whom."""
    out = []
    for move in moves:
        lo, last = int(move.get("lo", 0)), int(move.get("hi", 1)) - 1
        out.append(f"{lo}-{last} " if last > lo else f"{lo} ")
        out[-1] += f"{move.get('from', '?')} to {move.get('to', '?')}"
    return ", ".join(out)


def _number(facts: Mapping[str, Any], name: str) -> float:
    value = facts.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def event_line(event: Event) -> str:
    """``12:03:04  text``; the time is the coordinator's."""
    return f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {clean(event.text)}"


def progress_line(view: JobView) -> str:
    """The live view as one plain line, for pipes and journals."""
    state, train, check = view.state, view.train, view.validation
    parts = [f"{view.job}: {state.phase if state else 'waiting'}"]
    if view.rounds:
        parts.append(f"round {view.completed}/{view.rounds}")
    if train is not None and train.loss is not None:
        parts.append(f"loss {train.loss:.4f}")
    if check is not None and check.accuracy is not None:
        parts.append(f"validation {percent(check.accuracy)}")
    elif check is not None and check.loss is not None:
        parts.append(f"validation loss {check.loss:.4f}")
    if train is not None and train.samples_per_s is not None:
        parts.append(f"{train.samples_per_s:.0f} samples/s")
    if train is not None and train.eta_s is not None and not view.ended:
        parts.append(f"{duration(train.eta_s)} left")
    return ", ".join(parts)


def live_view(view: JobView, events: int = 6) -> RenderableType:
    """Progress bar, numbers, what each stage does, the last events."""
    state, train, check = view.state, view.train, view.validation
    phase = state.phase if state else "waiting"
    part = view.completed / view.rounds if view.rounds else 0.0
    head = Text.assemble((clean(view.job), "bold"), "  ", state_text(phase))
    if view.rounds:
        head.append_text(
            Text.assemble("  ", (bar(part, 30), "green"), f" {part * 100:3.0f} %  round {view.completed}/{view.rounds}")
        )
    if train is not None and train.eta_s is not None and not view.ended:
        head.append(f"  {duration(train.eta_s)} left")
    rows: list[RenderableType] = [head]
    numbers = []
    if train is not None and train.loss is not None:
        numbers.append(f"loss {train.loss:.4f} {curve(view.losses, 24)}")
    if check is not None:
        shown = percent(check.accuracy) if check.accuracy is not None else f"loss {check.loss or 0:.4f}"
        numbers.append(f"validation {shown}")
    if train is not None and train.samples_per_s is not None:
        numbers.append(f"{train.samples_per_s:.0f} samples/s")
    if view.measured_s is not None:
        numbers.append(f"round {duration(view.measured_s)}")
        if view.predicted_s is not None:
            numbers[-1] += f" (predicted {duration(view.predicted_s)})"
    if numbers:
        rows.append(Text("  " + "   ".join(numbers)))
    if view.plan is not None:
        busy = view.stage_busy
        for number, stage in enumerate(view.plan.plan.stages):
            names = clean(", ".join(f"{s.device}:{s.samples}" for s in stage.shares))
            line = Text(f"  stage {number}  layers {stage.lo}-{stage.hi - 1}".ljust(24))
            if number < len(busy):
                line.append_text(Text.assemble((bar(busy[number]), "cyan"), f" {busy[number] * 100:3.0f} % busy  "))
            line.append(names)
            rows.append(line)
    if view.recoveries and view.recoveries[-1] not in list(view.events)[-events:]:
        rows.append(Text("  " + event_line(view.recoveries[-1]), style="yellow", overflow="ellipsis", no_wrap=True))
    for event in list(view.events)[-events:]:
        rows.append(Text("  " + event_line(event), style="dim", overflow="ellipsis", no_wrap=True))
    return Group(*rows)


def result_table(view: JobView) -> Table:
    """What came out, as two columns."""
    facts = view.summary()
    made = table("", "")
    made.show_header = False

    def row(name: str, value: str | None) -> None:
        if value:
            made.add_row(Text(name, style="bold"), Text(clean(value)))

    row("job", f"{view.job}, {facts['phase']}" + (f": {facts['reason']}" if facts["reason"] else ""))
    row("rounds", f"{facts['completed']} of {facts['rounds']}, generation {facts['generation']}")
    row("loss", f"{facts['loss']:.4f}" if facts["loss"] is not None else None)
    row("validation loss", f"{facts['validation_loss']:.4f}" if facts["validation_loss"] is not None else None)
    if facts["accuracy"] is not None:
        row("accuracy", f"{percent(facts['accuracy'])} (best {percent(facts['best_accuracy'])})")
    if facts["measured_round_s"] is not None or facts["predicted_round_s"] is not None:
        predicted, measured = duration(facts["predicted_round_s"]), duration(facts["measured_round_s"])
        row("round time", f"predicted {predicted}, measured {measured} (median)")
    for event in view.recoveries:
        row("recovery", event.text)
    row("plan", facts["plan"])
    row("model file", facts["model_file"])
    return made
