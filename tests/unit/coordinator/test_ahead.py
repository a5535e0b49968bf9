"""Plans made ahead are given for exactly the loss that they were made for."""

from __future__ import annotations

from asteroid_coordinator.ahead import Ahead, Loss
from asteroid_core.plan import Plan, Share, Stage

PLAN = Plan(
    generation=3,
    stages=(
        Stage(lo=0, hi=2, shares=(Share(device="a", samples=2), Share(device="b", samples=2)), warm_up=3),
        Stage(lo=2, hi=3, shares=(Share(device="c", samples=4),), warm_up=1),
    ),
    micro_size=4,
    micro_count=2,
)
EVERYBODY = frozenset("abcd")


def test_who_is_a_stage_alone_comes_first_and_idle_devices_not_at_all() -> None:
    assert Ahead[str](PLAN, EVERYBODY).missing() == [
        Loss("c", "replay"),
        Loss("a", "regroup"),
        Loss("b", "regroup"),
        Loss("a", "replay"),
        Loss("b", "replay"),
    ]


def test_no_plan_is_made_for_a_loss_that_ends_the_job() -> None:
    needed = Ahead[str](PLAN, EVERYBODY, required=frozenset("c")).missing()
    assert {loss.device for loss in needed} == {"a", "b"}
    alone = PLAN.model_copy(update={"stages": (PLAN.stages[1].model_copy(update={"lo": 0}),)})
    assert Ahead[str](alone, frozenset("c")).missing() == []


def test_a_plan_is_found_by_plan_way_and_devices() -> None:
    plans = Ahead[str](PLAN, EVERYBODY).with_made(Loss("c", "replay"), "made")
    assert plans.of(PLAN, "replay", "abd") == "made"
    assert Loss("c", "replay") not in plans.missing()
    assert plans.of(PLAN, "regroup", "abd") is None
    assert plans.of(PLAN, "full", "abd") is None
    assert plans.of(None, "replay", "abd") is None


def test_another_plan_or_another_set_of_devices_finds_nothing() -> None:
    plans = Ahead[str](PLAN, EVERYBODY).with_made(Loss("c", "replay"), "made")
    assert plans.of(PLAN.model_copy(update={"generation": 4}), "replay", "abd") is None
    assert plans.of(PLAN, "replay", "abcd") is None  # nobody is lost
    assert plans.of(PLAN, "replay", "ab") is None  # one more is lost
    assert plans.of(PLAN, "replay", "abde") is None  # one has come
    assert plans.of(PLAN, "replay", "acd") is None  # another is lost


def test_a_loss_that_cannot_be_planned_for_is_not_tried_again() -> None:
    plans = Ahead[str](PLAN, EVERYBODY).with_made(Loss("c", "replay"), None)
    assert Loss("c", "replay") not in plans.missing()
    assert plans.of(PLAN, "replay", "abd") is None
