"""Plans cover the model, fit into memory, use speed, and a job that fits nowhere gets a sentence."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.problems import layer, problem, site

from asteroid_coordinator.planner import make_plan, round_time
from asteroid_coordinator.planner.allocate import allocate
from asteroid_coordinator.planner.costing import alive, costs_of, memory_of
from asteroid_coordinator.planner.formula import paper_round
from asteroid_coordinator.planner.problem import Problem, Tied, Wishes
from asteroid_core.errors import InputError, PlanError
from asteroid_core.memory import moments
from asteroid_core.spec import OptimizerSpec

FOUR = [layer(i) for i in range(4)]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """One to four devices of any speed, two to six layers, memory that may be tight."""
    count = draw(st.integers(2, 6))
    layers = [
        layer(i, draw(st.integers(0, 10**6)), draw(st.integers(0, 10**5)), draw(st.integers(1, 10**5)))
        for i in range(count)
    ]
    sites = [
        site(
            name,
            [draw(st.floats(1e-5, 1e-2)) for _ in range(count)],
            draw(st.sampled_from([2.0, 5.0, 1000.0])),
            draw(st.sampled_from([1e7, 1e9])),
        )
        for name in "abcd"[: draw(st.integers(1, 4))]
    ]
    return problem(sites, layers, Wishes(batch=16, micro_sizes=(8, 4, 2), all_devices=draw(st.booleans())))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_plan_is_whole_and_fits(given_: Problem) -> None:
    try:
        outcome = make_plan(given_, 1)
    except PlanError:
        assume(False)
    plan = outcome.plan
    assert plan.stages[0].lo == 0
    assert plan.stages[-1].hi == len(given_.layers)
    assert plan.batch == 16
    assert all(need <= budget for need, budget in outcome.memory.values())
    assert plan.predicted_s == pytest.approx(round_time(plan, outcome.costs))
    if given_.wishes.all_devices:
        assert set(plan.devices) == {s.name for s in given_.sites}


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 16))
def test_algorithm_1_gives_every_sample_once_and_never_more_than_fits(given_: Problem, micro: int) -> None:
    shares = allocate(given_, given_.sites, 0, len(given_.layers), micro, 2)
    if shares is None:
        return
    assert sum(shares) == micro
    for where, samples in zip(given_.sites, shares, strict=True):
        assert not samples or given_.fits(where, 0, len(given_.layers), samples, 2, len(given_.sites))


def test_shares_follow_speed() -> None:
    made = problem([site("slow", [3e-3] * 4), site("fast", [1e-3] * 4)], FOUR)
    assert allocate(made, made.sites, 0, 4, 16, 1) == (4, 12)


def test_memory_moves_samples_to_who_has_room() -> None:
    small = site("small", [1e-3] * 4, budget_mb=0.03)
    made = problem([small, site("large", [1e-3] * 4)], FOUR)
    shares = allocate(made, made.sites, 0, 4, 16, 1)
    assert shares is not None
    assert shares[0] < 8
    assert sum(shares) == 16


def test_two_equal_devices_are_faster_than_one() -> None:
    sites = [site("a", [1e-3] * 4), site("b", [1e-3] * 4)]
    alone = make_plan(problem(sites[:1], FOUR), 1)
    both = make_plan(problem(sites, FOUR), 1)
    assert alone.plan.predicted_s is not None
    assert both.plan.predicted_s is not None
    assert both.plan.predicted_s < 0.7 * alone.plan.predicted_s


def test_a_slow_link_keeps_everything_on_one_device() -> None:
    sites = [site("a", [1e-4] * 4, bytes_per_s=1e3), site("b", [1e-4] * 4, bytes_per_s=1e3)]
    assert len(make_plan(problem(sites, FOUR), 1).plan.devices) == 1


def test_a_model_too_large_for_each_device_is_split() -> None:
    large = [layer(i, weights=1_000_000) for i in range(4)]
    sites = [site(name, [1e-3] * 4, budget_mb=7.0) for name in "abc"]
    plan = make_plan(problem(sites, large), 1).plan
    assert len(plan.stages) >= 2


def test_a_model_that_fits_nowhere_gets_a_sentence() -> None:
    huge = [layer(i, weights=50_000_000) for i in range(2)]
    with pytest.raises(PlanError) as caught:
        make_plan(problem([site("a", [1e-3] * 2, budget_mb=20)], huge), 1)
    assert caught.value.exit_code == 2
    assert "MB more than any device lends" in caught.value.what
    assert "a 20 MB" in caught.value.what
    assert "more on a" in caught.value.remedy
    wide = [layer(i, weights=1_000_000) for i in range(10)]
    with pytest.raises(PlanError, match="fits nowhere"):
        make_plan(problem([site("a", [1e-3] * 10, budget_mb=8)], wide), 1)


def test_wishes_are_kept() -> None:
    sites = [site(name, [1e-3] * 4) for name in "abc"]
    plan = make_plan(problem(sites, FOUR, Wishes(16, (4,), stages=3)), 1).plan
    assert len(plan.stages) == 3
    needed = Wishes(16, (4,), required=frozenset({"c"}))
    slow = [*sites[:2], site("c", [1.0] * 4)]
    assert "c" in make_plan(problem(slow, FOUR, needed), 1).plan.devices
    gpipe = make_plan(problem(sites, FOUR, Wishes(16, (4,), order="gpipe", stages=2)), 1).plan
    assert gpipe.order == "gpipe"
    assert alive(gpipe, gpipe.stages[0].warm_up) == 4


def test_ties_become_reduction_groups() -> None:
    tied = {"embed.weight": Tied((0, 3), 4_000)}
    sites = [site(name, [1e-3] * 4) for name in "ab"]
    outcome = make_plan(problem(sites, FOUR, Wishes(16, (4,), stages=2), tied), 1)
    assert [(t.name, t.stages) for t in outcome.plan.ties] == [("embed.weight", (0, 1))]
    assert outcome.costs.tie_bytes == (4_000,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("0-3 a", "cannot be read"),
        ("0-3 z:4", "z, which is not there"),
        ("0-3 a:5", "does not divide"),
        ("0-2 a:4", "ends at layer 2"),
        ("0-1 a:4 | 3-3 b:4", "expected to begin at 2"),
        ("0-1 a:4 | 2-3 b:2", "add up to 2"),
        ("0-1 a:4 | 2-3 a:4", "appears twice"),
    ],
)
def test_a_wrong_plan_by_hand_gets_a_sentence(text: str, says: str) -> None:
    made = problem([site("a", [1e-3] * 4), site("b", [1e-3] * 4)], FOUR)
    with pytest.raises(InputError, match=says):
        make_plan(made, 1, fixed=text)


def test_a_plan_by_hand() -> None:
    made = problem([site("a", [1e-3] * 4), site("b", [1e-3] * 4)], FOUR)
    outcome = make_plan(made, 3, fixed="0-1 a:4 | 2-3 b:4")
    assert outcome.plan.describe() == "[0-1 a:4 K3] [2-3 b:4 K1] B=4 M=4 1f1b"
    assert outcome.plan.generation == 3
    tight = replace(made, sites=(replace(made.sites[0], budget_mb=0.001), made.sites[1]))
    with pytest.raises(PlanError, match="on a, which lends 0 MB"):
        make_plan(tight, 1, fixed="0-1 a:4 | 2-3 b:4")
    with pytest.raises(InputError, match="no planner nobody"):
        make_plan(made, 1, planner="nobody")


def test_the_closed_formula_agrees_with_the_simulator_where_links_are_fast() -> None:
    sites = [site(name, [1e-3] * 4, bytes_per_s=1e12) for name in "ab"]
    made = problem(sites, FOUR)
    plan = make_plan(made, 1, fixed="0-1 a:2 | 2-3 b:2").plan
    costs = costs_of(plan, made)
    assert paper_round(plan, costs) == pytest.approx(round_time(plan, costs), rel=0.02)
    assert memory_of(plan, made)["a"][1] == 1000.0


def test_moments_of_the_optimizers() -> None:
    assert [moments(o) for o in (OptimizerSpec(momentum=0), OptimizerSpec(), OptimizerSpec(kind="adamw"))] == [0, 1, 2]


def test_measured_memory_goes_before_the_estimate() -> None:
    guessed = site("a", [1e-3] * 4)
    times = tuple(t.model_copy(update={"activation_bytes": 1}) for t in guessed.profile.layers)
    measured = replace(guessed, name="b", profile=guessed.profile.model_copy(update={"layers": times}))
    made = problem([guessed, measured], FOUR)
    more, less = (made.memory(where, 0, 4, 8, 2, 1) for where in made.sites)
    assert more.activations - less.activations == 8 * 2 * 4 * 999


def _refused(made: Problem, planner: str = "asteroid") -> PlanError:
    with pytest.raises(PlanError) as caught:
        make_plan(made, 1, planner)
    assert caught.value.exit_code == 2
    return caught.value


def _fits(made: Problem) -> bool:
    try:
        make_plan(made, 1)
    except PlanError:
        return False
    return True


def test_a_refusal_names_the_device_that_lacks_least_and_what_it_says_helps() -> None:
    layers = [layer(i, weights=1_000_000, activation=100_000) for i in range(6)]
    sites = [site("small", [1e-3] * 6, budget_mb=4), site("large", [1e-3] * 6, budget_mb=11)]
    tight = problem(sites, layers, Wishes(16, (8,)), optimizer=OptimizerSpec(kind="adamw"))
    error = _refused(tight)
    found = re.search(r"(\w+) lacks (\d+) MB", error.what)
    assert found is not None
    richer = tuple(replace(s, budget_mb=s.budget_mb + int(found[2])) if s.name == found[1] else s for s in tight.sites)
    assert _fits(replace(tight, sites=richer))
    poorer = tuple(
        replace(s, budget_mb=s.budget_mb + int(found[2]) - 1) if s.name == found[1] else s for s in tight.sites
    )
    assert not _fits(replace(tight, sites=poorer))
    assert f"lend {found[2]} MB more on {found[1]}" in error.remedy
    joins = re.search(r"one more device that lends (\d+) MB", error.remedy)
    assert joins is not None
    new = site("new", [1e-3] * 6, budget_mb=float(joins[1]))
    assert _fits(replace(tight, sites=(*tight.sites, new)))


def test_a_refusal_offers_a_smaller_micro_batch_and_a_lighter_optimizer_where_they_help() -> None:
    layers = [layer(i, weights=1_000_000, activation=400_000) for i in range(4)]
    sites = [site("a", [1e-3] * 4, budget_mb=23)]
    wide = problem(sites, layers, Wishes(16, (8,)), optimizer=OptimizerSpec(momentum=0.0))
    error = _refused(wide)
    found = re.search(r"train.micro_batch = (\d+)", error.remedy)
    assert found is not None
    assert _fits(replace(wide, wishes=Wishes(16, (int(found[1]),))))
    assert not _fits(replace(wide, wishes=Wishes(16, (2 * int(found[1]),))))
    heavy = problem(sites, layers, Wishes(16, (1,)), optimizer=OptimizerSpec(kind="adamw"))
    assert 'optimizer.kind = "sgd"' in _refused(heavy).remedy
    assert _fits(replace(heavy, optimizer=OptimizerSpec(kind="sgd")))


def test_a_refusal_of_too_many_wishes_says_to_drop_them() -> None:
    sites = [site("a", [1e-3] * 4, budget_mb=50), site("b", [1e-3] * 4, budget_mb=0.001)]
    error = _refused(problem(sites, FOUR, Wishes(16, (4,), all_devices=True)))
    assert "drop plan.stages and plan.all_devices" in error.remedy


def test_another_planner_says_what_stops_it_and_that_asteroid_has_a_plan() -> None:
    large = [layer(i, weights=1_000_000) for i in range(4)]
    sites = [site(name, [1e-3] * 4, budget_mb=7.0) for name in "abc"]
    error = _refused(problem(sites, large), "dp")
    assert re.search(r"the whole model needs \d+ MB more than the 7 MB that [abc] lends", error.what)
    assert "asteroid finds one" in error.remedy


def test_exhaustive_is_for_small_clusters() -> None:
    with pytest.raises(InputError, match="at most 5 devices"):
        make_plan(problem([site(f"d{i}", [1e-3] * 4) for i in range(6)], FOUR), 1, "exhaustive")


def test_a_tied_weight_is_held_by_every_stage_that_uses_it() -> None:
    tied = {"embed.weight": Tied((0, 3), 4_000)}
    made = problem([site("a", [1e-3] * 4)], FOUR, tied=tied)
    plain = problem([site("a", [1e-3] * 4)], FOUR)
    head, tail = (made.memory(made.sites[0], lo, hi, 1, 1, 1) for lo, hi in ((0, 2), (2, 4)))
    assert head == plain.memory(plain.sites[0], 0, 2, 1, 1, 1)
    assert tail.weights - plain.memory(plain.sites[0], 2, 4, 1, 1, 1).weights == 2 * 4_000
    assert made.memory(made.sites[0], 0, 4, 1, 1, 1) == plain.memory(plain.sites[0], 0, 4, 1, 1, 1)


def test_k_is_chosen_smaller_where_memory_is_tight() -> None:
    layers = [layer(i, weights=1_000, activation=1_000_000) for i in range(4)]
    roomy = [site(name, [1e-3] * 4, budget_mb=1000.0) for name in "ab"]
    # 3 micro-batches of 4 samples with 2 layers: 24 MB; 2 of them: 16 MB
    tight = [site(name, [1e-3] * 4, budget_mb=18.0) for name in "ab"]
    wishes = Wishes(32, (4,), stages=2, all_devices=True)
    assert make_plan(problem(roomy, layers, wishes), 1).plan.stages[0].warm_up == 3
    assert make_plan(problem(tight, layers, wishes), 1).plan.stages[0].warm_up == 2
