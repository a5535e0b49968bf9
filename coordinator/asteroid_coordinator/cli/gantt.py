"""Draws a simulated round as a Gantt chart: characters for a terminal, SVG for a page. Pure."""

from __future__ import annotations

from html import escape

from rich.text import Text

from asteroid_coordinator.simulator.trace import Span, Trace
from asteroid_core.plan import Plan
from asteroid_core.schedule import Op

LEGEND = "0-9: forward of a micro-batch, a-z: backward, =: step, ·: idle"
_STYLES = {Op.FORWARD: "black on cyan", Op.BACKWARD: "black on green", Op.STEP: "black on yellow"}
_COLOURS = {Op.FORWARD: "#56b4e9", Op.BACKWARD: "#009e73", Op.STEP: "#e69f00", Op.REDUCE: "#cc79a7"}
"""Colours that people with any kind of colour vision can tell apart (Okabe and Ito)."""
_ROW, _LEFT, _WIDE = 26, 130, 900


def gantt_text(plan: Plan, trace: Trace, width: int) -> Text:
    """Return the chart for a terminal.

    Args:
        plan: gives the order of devices.
        trace: a simulated round.
        width: columns that may be used.
    """
    label = max(len(device) for device in plan.devices)
    columns = max(width - label - 15, 10)
    out = Text()
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            out.append(f"{number:>2} {device:<{label}} ")
            for sign, style in _cells(device, trace, columns):
                out.append(sign, style)
            out.append(f" {trace.busy(device) * 100:3.0f} % busy\n")
    out.append(" " * (label + 4) + f"0{f'{trace.round_s * 1e3:.1f} ms':>{columns - 1}}\n", "dim")
    out.append(" " * (label + 4) + LEGEND, "dim")
    return out


def _cells(device: str, trace: Trace, columns: int) -> list[tuple[str, str]]:
    """One character a column: what the device did for the longest part of it."""
    share: list[dict[str, float]] = [{} for _ in range(columns)]
    styles: dict[str, str] = {"·": "dim"}
    step = trace.round_s / columns if trace.round_s > 0 else 1.0
    for span in trace.spans:
        if span.device != device or span.end <= span.start:
            continue
        sign = _sign(span)
        styles[sign] = _STYLES.get(span.item.op, "")
        for column in range(int(span.start / step), min(int(span.end / step) + 1, columns)):
            inside = min(span.end, (column + 1) * step) - max(span.start, column * step)
            if inside > 0:
                share[column][sign] = share[column].get(sign, 0.0) + inside
    cells = []
    for parts in share:
        sign = max(parts, key=parts.__getitem__) if sum(parts.values()) > step / 2 else "·"
        cells.append((sign, styles[sign]))
    return cells


def _sign(span: Span) -> str:
    number = (span.item.number or 0) % 26
    if span.item.op is Op.FORWARD:
        return str(number % 10)
    if span.item.op is Op.BACKWARD:
        return chr(ord("a") + number)
    return "="


def gantt_svg(plan: Plan, trace: Trace) -> str:
    """Return the chart as an SVG document: a row a device, computations in colour, transfers as thin lines."""
    scale = _WIDE / trace.round_s if trace.round_s > 0 else 1.0
    tops = {device: 30 + i * _ROW for i, device in enumerate(plan.devices)}
    height = 30 + len(plan.devices) * _ROW + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE + 20}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(plan.describe())}</title>",
        f'<text x="4" y="16">{escape(plan.describe())}: {trace.round_s * 1e3:.1f} ms a round</text>',
    ]
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            parts.append(f'<text x="4" y="{tops[device] + 15}">{number} {escape(device)}</text>')
            parts.append(f'<rect x="{_LEFT}" y="{tops[device]}" width="{_WIDE}" height="{_ROW - 6}" fill="#eeeeee"/>')
    for span in trace.spans:
        x, wide = _LEFT + span.start * scale, (span.end - span.start) * scale
        parts.append(
            f'<rect x="{x:.2f}" y="{tops[span.device]}" width="{wide:.2f}" height="{_ROW - 6}" '
            f'fill="{_COLOURS.get(span.item.op, "#999999")}" stroke="white" stroke-width="0.5">'
            f"<title>{span.item} {span.start * 1e3:.2f} to {span.end * 1e3:.2f} ms</title></rect>"
        )
        if wide > 14 and span.item.number is not None:
            parts.append(f'<text x="{x + 3:.2f}" y="{tops[span.device] + 14}">{span.item.number}</text>')
    for move in trace.transfers:
        if move.item.op in (Op.SEND_ACT, Op.SEND_GRAD):
            parts.append(
                f'<line x1="{_LEFT + move.start * scale:.2f}" y1="{tops[move.source] + 10}" '
                f'x2="{_LEFT + move.end * scale:.2f}" y2="{tops[move.target] + 10}" stroke="#888888" '
                'stroke-width="0.5"/>'
            )
    foot = height - 10
    for i, (op, name) in enumerate(((Op.FORWARD, "forward"), (Op.BACKWARD, "backward"), (Op.STEP, "step"))):
        x = _LEFT + i * 110
        parts.append(f'<rect x="{x}" y="{foot - 10}" width="12" height="12" fill="{_COLOURS[op]}"/>')
        parts.append(f'<text x="{x + 18}" y="{foot}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
