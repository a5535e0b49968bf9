"""Jobs and plans for tests, made from short texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from asteroid_coordinator.importing import Imports, import_job
from asteroid_core.plan import Order, Plan, Share, Stage, Tie
from asteroid_core.spec import JobSpec, parse_job

ROOT = Path(__file__).resolve().parent.parent.parent
TOKENS = frozenset({"transformer", "bert-small", "bert-small-mlm", "gpt2-mini"})
"""Models that take text."""


def job(model: str, options: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    """A small job on digits; ``options`` are the model's, ``changes`` add to tables."""
    raw: dict[str, Any] = {
        "name": "test",
        "model": {"name": model, "options": options or {}},
        "data": {"source": "digits", "validation": 0.02},
        "train": {"rounds": 20, "batch": 16, "dtype": "float64", "validate_every": 10},
        "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    }
    if model in TOKENS:
        task = "masked-bytes" if model.endswith("mlm") else "next-byte"
        raw["data"] = {"source": str(ROOT / "LICENSE"), "options": {"length": 16, "task": task}, "validation": 0.02}
    for key, value in changes.items():
        if isinstance(value, dict):
            raw[key] = {**raw.get(key, {}), **value}
        else:
            raw[key] = value
    return parse_job(raw, "test")


@lru_cache(maxsize=32)
def _imported(text: str) -> Imports:
    return import_job(JobSpec.model_validate_json(text))


def imported(spec: JobSpec) -> Imports:
    """Export a job's model, once for all tests that use the same job."""
    return _imported(spec.model_dump_json())


def plan(imports: Imports, text: str, order: Order = "1f1b", cuts: Sequence[int] = (), warm_up: int = 0) -> Plan:
    """``a:4 | b:2 c:2``: stages and shares; the layers are divided evenly, or where ``cuts`` says."""
    count = len(imports.model.layers)
    parts = text.split("|")
    edges = [0, *cuts, count] if cuts else [round(i * count / len(parts)) for i in range(len(parts) + 1)]
    micro = sum(int(word.split(":")[1]) for word in parts[0].split())
    stages, total = [], imports.spec.train.batch // micro
    for number, part in enumerate(parts):
        shares = [word.split(":") for word in part.split()]
        stages.append(
            Stage(
                lo=edges[number],
                hi=edges[number + 1],
                shares=tuple(Share(device=name, samples=int(samples)) for name, samples in shares),
                warm_up=warm_up or min(2 * (len(parts) - number) - 1, total),
            )
        )
    return Plan(
        generation=1,
        stages=tuple(stages),
        micro_size=micro,
        micro_count=total,
        order=order,
        ties=ties(imports, edges),
    )


def ties(imports: Imports, edges: list[int]) -> tuple[Tie, ...]:
    """Parameters that several of the stages between the edges hold."""
    out = []
    for name, layers in sorted(imports.model.ties.items()):
        held = tuple(i for i in range(len(edges) - 1) if any(edges[i] <= layer < edges[i + 1] for layer in layers))
        if len(held) > 1:
            out.append(Tie(name=name, stages=held))
    return tuple(out)
