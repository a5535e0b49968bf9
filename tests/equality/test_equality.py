"""A pipeline of several devices computes what one process computes (float64, 1e-9)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import cluster, jobs, reference

PLANS = {
    "one": "a:8",
    "two stages": "a:8 | b:8",
    "a group": "a:4 b:4",
    "an uneven group": "a:3 b:5",
    "three stages": "a:8 | b:8 | c:8",
    "a group before": "a:5 b:3 | c:8",
    "a group behind": "a:8 | b:1 c:7",
    "four stages": "a:8 | b:8 | c:8 | d:8",
    "two groups": "a:4 b:4 | c:6 d:2",
    "a group between": "a:8 | b:2 c:6 | d:8",
}
MODELS = ("mlp", "cnn", "transformer")


@pytest.mark.parametrize("shape", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_weights_after_twenty_rounds_equal_those_of_one_process(model: str, shape: str) -> None:
    imports = jobs.imported(jobs.job(model))
    plan = jobs.plan(imports, PLANS[shape])

    outcome = cluster.run(imports, plan)
    wanted, losses = reference.train(imports, plan)

    assert max(reference.distance(outcome.state, wanted)) < 1e-9
    np.testing.assert_allclose(outcome.losses(), losses, rtol=1e-9)
    assert max(reference.distance(dict(imports.model.all_state()), wanted, strict=False)) > 1e-3  # it did train


@pytest.mark.parametrize("shape", ["an uneven group", "two groups"])
def test_replicas_of_a_stage_are_bitwise_equal(shape: str) -> None:
    imports = jobs.imported(jobs.job("cnn"))
    plan = jobs.plan(imports, PLANS[shape])
    outcome = cluster.run(imports, plan)
    for stage in plan.stages:
        first, *others = (outcome.copies[device] for device in stage.devices)
        for other in others:
            assert first.keys() == other.keys()
            assert all(np.array_equal(first[name], other[name]) for name in first)


def test_float32_is_equal_to_rounding() -> None:
    imports = jobs.imported(jobs.job("transformer", train={"dtype": "float32"}))
    plan = jobs.plan(imports, PLANS["two groups"])
    wanted, _ = reference.train(imports, plan)
    assert max(reference.distance(cluster.run(imports, plan).state, wanted)) < 1e-3


def test_gpipe_computes_the_same_as_1f1b() -> None:
    imports = jobs.imported(jobs.job("cnn"))
    text = "a:4 | b:4 | c:4"
    one = cluster.run(imports, jobs.plan(imports, text))
    other = cluster.run(imports, jobs.plan(imports, text, order="gpipe"))
    assert all(np.array_equal(one.state[name], other.state[name]) for name in one.state)


def test_no_device_holds_more_micro_batches_than_its_warm_up() -> None:
    imports = jobs.imported(jobs.job("mlp"))
    plan = jobs.plan(imports, "a:2 | b:2 | c:2")
    outcome = cluster.run(imports, plan)
    for report in outcome.reports:
        if report.kind == "round":
            assert 1 <= report.peak_alive <= plan.stages[plan.stage_of(report.agent)].warm_up


@pytest.mark.parametrize("optimizer", [{"kind": "sgd"}, {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1}])
@pytest.mark.parametrize(
    ("first", "second"), [("a:8 | b:8", "a:8 | b:8"), ("a:8 | b:5 c:3", "a:8 | c:8"), ("a:8", "b:4 c:4")]
)
def test_a_restart_under_another_plan_changes_nothing(first: str, second: str, optimizer: dict[str, object]) -> None:
    job = jobs.imported(jobs.job("transformer", {"dropout": 0.2, "tied": 1}, optimizer=optimizer))
    half = jobs.imported(jobs.job("transformer", {"dropout": 0.2, "tied": 1}, optimizer=optimizer, train={"rounds": 9}))
    before = cluster.run(half, jobs.plan(half, first))
    kept = {k: v for name in reversed(jobs.plan(half, first).devices) for k, v in before.copies[name].items()}
    after = cluster.run(job, jobs.plan(job, second), start=9, begin=kept)
    wanted, _ = reference.train(job, jobs.plan(job, first))
    assert max(reference.distance(after.state, wanted)) < 1e-9
