"""The values that everything else is made of: plans, rounds, job files, learning rates, sums, masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asteroid_core.errors import InputError
from asteroid_core.optim import clip_scale, learning_rate
from asteroid_core.plan import Plan, Share, Stage, Tie
from asteroid_core.profile import interpolate
from asteroid_core.program import Dropout
from asteroid_core.randomness import dropout_mask
from asteroid_core.reduce import add_in_order, slices
from asteroid_core.rounds import RoundPlan, passes, validation_micros
from asteroid_core.spec import OptimizerSpec, parse_job

JOB: dict[str, Any] = {
    "name": "j", "model": {"name": "mlp"}, "data": {"source": "digits"}, "train": {"epochs": 1},
}  # fmt: skip


def _stage(lo: int, hi: int, *shares: tuple[str, int]) -> Stage:
    return Stage(lo=lo, hi=hi, shares=tuple(Share(device=d, samples=n) for d, n in shares), warm_up=1)


@pytest.mark.parametrize(
    ("stages", "ties", "says"),
    [
        ((_stage(1, 2, ("a", 4)),), (), "expected to begin at 0"),
        ((_stage(0, 1, ("a", 4)), _stage(2, 3, ("b", 4))), (), "expected to begin at 1"),
        ((_stage(0, 1, ("a", 3)),), (), "add up to 3"),
        ((_stage(0, 1, ("a", 2), ("a", 2)),), (), "twice"),
        ((_stage(0, 1, ("a", 4)), _stage(1, 2, ("a", 4))), (), "twice"),
        ((_stage(0, 1, ("a", 4)), _stage(1, 2, ("b", 4))), (Tie(name="w", stages=(0, 2)),), "names stages"),
    ],
)
def test_a_plan_that_is_none_is_refused(stages: tuple[Stage, ...], ties: tuple[Tie, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Plan(generation=1, stages=stages, micro_size=4, micro_count=1, ties=ties)


def test_a_tie_is_a_reduction_group_of_its_own() -> None:
    plan = Plan(
        generation=1,
        stages=(_stage(0, 1, ("a", 2), ("b", 2)), _stage(1, 2, ("c", 4))),
        micro_size=4,
        micro_count=1,
        ties=(Tie(name="w", stages=(0, 1)),),
    )
    assert plan.reduction_groups("a") == ((0, ("a", "b")), (1, ("a", "b", "c")))
    assert plan.reduction_groups("c") == ((1, ("a", "b", "c")),)


@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_rounds_run_over_the_concatenated_epochs(samples: int, epochs: int, batch: int, seed: int) -> None:
    batch = min(batch, samples * epochs)
    plan = RoundPlan(samples, batch, batch, epochs, seed)
    seen: dict[int, list[int]] = {}
    for number in range(plan.rounds):
        of, indices = plan.sample_keys(number)
        assert len(indices) == batch
        for epoch, index in zip(of.tolist(), indices.tolist(), strict=True):
            seen.setdefault(epoch, []).append(index)
    assert sum(map(len, seen.values())) + plan.dropped == samples * epochs
    for epoch, all_of_it in seen.items():
        assert len(set(all_of_it)) == len(all_of_it)
        if epoch < max(seen):
            assert sorted(all_of_it) == list(range(samples))


def test_the_order_is_a_function_of_seed_epoch_and_round() -> None:
    a, b = RoundPlan(100, 10, 5, 3, 7), RoundPlan(100, 10, 2, 3, 7)
    for number in (0, 9, 10, 29):
        assert np.array_equal(a.sample_keys(number)[1], b.sample_keys(number)[1])
    assert not np.array_equal(a.sample_keys(0)[1], a.sample_keys(10)[1])
    assert not np.array_equal(a.sample_keys(0)[1], RoundPlan(100, 10, 5, 3, 8).sample_keys(0)[1])


@given(st.integers(0, 100), st.integers(1, 17))
def test_validation_covers_every_sample_once(samples: int, micro: int) -> None:
    sizes = validation_micros(samples, micro)
    assert sum(sizes) == samples
    assert all(size == micro for size in sizes[:-1])


def test_a_restart_repeats_the_validation_that_was_due() -> None:
    plan = RoundPlan(20, 10, 10, 2, 0)
    whole = [(p.phase, p.round) for p in passes(plan, 0, 5)]
    assert whole == [(0, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 3)]
    assert [(p.phase, p.round) for p in passes(plan, 2, 5)] == whole[2:]
    assert [(p.phase, p.round) for p in passes(plan, 3, 5)] == whole[4:]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("train", "epochs"), 0, "train.epochs"),
        (("train", "batch"), "x", "train.batch"),
        (("train", "batchh"), 3, "did you mean batch?"),
        (("modl",), {}, "did you mean model?"),
        (("optimizer", "lr"), -1, "optimizer.lr"),
        (("optimizer", "kind"), "rmsprop", "optimizer.kind"),
        (("data", "validation"), 1.0, "data.validation"),
        (("plan", "order"), "zigzag", "plan.order"),
        (("checkpoint", "every"), "often", "checkpoint.every"),
        (("name",), "No Good", "No Good"),
    ],
)
def test_each_wrong_field_is_named_in_one_sentence(place: tuple[str, ...], value: object, says: str) -> None:
    raw: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in JOB.items()}
    at: dict[str, Any] = raw
    for key in place[:-1]:
        at = at.setdefault(key, {})
    at[place[-1]] = value
    with pytest.raises(InputError) as caught:
        parse_job(raw, "job.toml")
    assert says in caught.value.what
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_learning_rates() -> None:
    warm = OptimizerSpec(lr=1.0, schedule="cosine", warmup_rounds=4)
    assert [learning_rate(warm, r, 12) for r in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert learning_rate(warm, 8, 12) == pytest.approx(0.5)
    assert learning_rate(OptimizerSpec(lr=1.0, schedule="linear"), 5, 10) == 0.5
    assert learning_rate(OptimizerSpec(lr=0.3), 5, 10) == 0.3


def test_clipping_is_torchs() -> None:
    gradients = [torch.randn(5), torch.randn(3, 2)]
    params = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(params, 0.5)
    scale = clip_scale(OptimizerSpec(clip_norm=0.5), [float(g.norm()) ** 2 for g in gradients])
    for param, gradient in zip(params, gradients, strict=True):
        assert param.grad is not None
        assert torch.allclose(param.grad, gradient * scale, rtol=1e-5)
    assert clip_scale(OptimizerSpec(), [100.0]) == 1.0


@given(st.integers(0, 1000), st.integers(1, 7))
def test_slices_cover_a_vector(length: int, parts: int) -> None:
    made = slices(length, parts)
    assert len(made) == parts
    assert [made[0][0], *(hi for _, hi in made)] == [0, *[lo for lo, _ in made[1:]], length]


def test_sums_are_added_in_device_order() -> None:
    pieces = [np.array([1e16]), np.array([1.0]), np.array([-1e16])]
    assert add_in_order(pieces)[0] == (1e16 + 1.0) - 1e16
    assert add_in_order(pieces[::-1])[0] == (-1e16 + 1.0) + 1e16


@given(st.integers(1, 6), st.integers(0, 5))
def test_a_mask_belongs_to_the_sample(count: int, cut: int) -> None:
    dropout = Dropout(node="d", id=5, p=0.4, shape=(3, 4), dtype="float64")
    epochs, samples = list(range(count)), [7 * i for i in range(count)]
    whole = dropout_mask(dropout, 1, epochs, samples)
    cut = min(cut, count)
    parts = [dropout_mask(dropout, 1, epochs[a:b], samples[a:b]) for a, b in ((0, cut), (cut, count))]
    assert np.array_equal(whole, np.concatenate(parts))
    assert set(np.unique(whole)) <= {0.0, 1 / 0.6}


def test_a_mask_keeps_as_many_as_it_should() -> None:
    dropout = Dropout(node="d", id=5, p=0.25, shape=(10_000,), dtype="float32")
    kept = np.count_nonzero(dropout_mask(dropout, 0, [0], [0])) / 10_000
    assert math.isclose(kept, 0.75, abs_tol=0.03)


def test_times_between_measured_batches() -> None:
    batches, seconds = (1, 4), (2.0, 5.0)
    assert [interpolate(batches, seconds, b) for b in (0.5, 1, 2, 4, 8)] == [2.0, 2.0, 3.0, 5.0, 10.0]
