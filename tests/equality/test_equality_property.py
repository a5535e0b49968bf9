"""Whatever the plan, split, optimizer, clipping, dropout or tie: the pipeline computes what one process computes."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import cluster, jobs, reference

from asteroid_core.plan import Plan

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"dropout": 0.3, "hidden": 16},
    "cnn": {"dropout": 0.2, "width": 4},
    "transformer": {"dropout": 0.1, "tied": 1, "width": 16},
}
OPTIMIZERS: list[dict[str, Any]] = [
    {"kind": "sgd", "lr": 0.1, "momentum": 0.0},
    {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5, "schedule": "cosine"},
    {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1, "warmup_rounds": 2, "schedule": "linear"},
    {"kind": "adamw", "lr": 0.01, "clip_norm": 1.0},
]
BATCH = 12


@st.composite
def shapes(draw: st.DrawFn) -> str:
    """Stages of one or two devices with any shares of a micro-batch that divides the batch."""
    micro = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    names = iter("abcd")
    left = 4
    parts: list[str] = []
    while left and (not parts or draw(st.booleans())):
        pair = left > 1 and micro > 1 and draw(st.booleans())
        left -= 1 + pair
        if pair:
            first = draw(st.integers(1, micro - 1))
            parts.append(f"{next(names)}:{first} {next(names)}:{micro - first}")
        else:
            parts.append(f"{next(names)}:{micro}")
    return " | ".join(parts)


@settings(
    max_examples=int(os.environ.get("ASTEROID_EXAMPLES", "12")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    model=st.sampled_from(sorted(MODELS)),
    shape=shapes(),
    optimizer=st.sampled_from(OPTIMIZERS),
    order=st.sampled_from(["1f1b", "gpipe"]),
    data=st.data(),
)
def test_any_plan_equals_one_process(model: str, shape: str, optimizer: dict[str, Any], order: Any, data: Any) -> None:
    spec = jobs.job(
        model,
        MODELS[model],
        optimizer=optimizer,
        train={"rounds": 4, "batch": BATCH, "validate_every": 2},
    )
    imports = jobs.imported(spec)
    stages = shape.count("|") + 1
    inner = st.lists(
        st.integers(1, len(imports.model.layers) - 1), min_size=stages - 1, max_size=stages - 1, unique=True
    )
    plan: Plan = jobs.plan(
        imports, shape, order=order, cuts=sorted(data.draw(inner)), warm_up=data.draw(st.integers(0, 5))
    )
    wanted, _ = reference.train(imports, plan)
    assert max(reference.distance(cluster.run(imports, plan).state, wanted)) < 1e-9
