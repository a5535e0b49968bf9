"""Who sends which rows to whom between two device groups of different size: the overlap of two row ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asteroid_core.plan import Plan, Stage

Bounds = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Route:
    """Rows ``[lo, hi)`` of a micro-batch that travel from one device to another."""

    source: str
    target: str
    lo: int
    hi: int


def clip(stage: Stage, rows: int) -> dict[str, tuple[int, int]]:
    """Row range of each device for a micro-batch of ``rows`` samples; devices without a row are left out.

    A shorter micro-batch (the last one of a validation) keeps the ranges of the full one, cut at ``rows``.
    """
    return {
        share.device: (lo, min(hi, rows))
        for share, (lo, hi) in zip(stage.shares, stage.bounds, strict=True)
        if lo < rows
    }


def routes(sources: dict[str, tuple[int, int]], targets: dict[str, tuple[int, int]]) -> tuple[Route, ...]:
    """Return every non-empty overlap of a source's rows with a target's rows, in row order."""
    return tuple(
        Route(a, b, max(alo, blo), min(ahi, bhi))
        for a, (alo, ahi) in sources.items()
        for b, (blo, bhi) in targets.items()
        if max(alo, blo) < min(ahi, bhi)
    )


def forward_routes(plan: Plan, stage: int, rows: int | None = None) -> tuple[Route, ...]:
    """Routes of activations from ``stage`` to ``stage + 1``; gradients travel the same ones backwards."""
    n = plan.micro_size if rows is None else rows
    return routes(clip(plan.stages[stage], n), clip(plan.stages[stage + 1], n))


def outgoing(plan: Plan, device: str, rows: int | None = None) -> tuple[Route, ...]:
    """Routes on which ``device`` sends activations (and receives gradients)."""
    stage = plan.stage_of(device)
    if stage + 1 == len(plan.stages):
        return ()
    return tuple(r for r in forward_routes(plan, stage, rows) if r.source == device)


def incoming(plan: Plan, device: str, rows: int | None = None) -> tuple[Route, ...]:
    """Routes on which ``device`` receives activations (and sends gradients)."""
    stage = plan.stage_of(device)
    if stage == 0:
        return ()
    return tuple(r for r in forward_routes(plan, stage - 1, rows) if r.target == device)
