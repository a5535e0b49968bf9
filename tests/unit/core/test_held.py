"""Who keeps which state: what can be put together after a loss, and where each device gets its layers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import replicas
from tests.support.plans import random_plan

from asteroid_core.held import Held, Source, holders, newest, of_names, secured, sources
from asteroid_core.plan import Plan, Stage
from asteroid_core.wire.safe import Array

COORDINATOR = "coordinator"


def _held(device: str, rounds: int, lo: int, hi: int, generation: int = 1) -> Held:
    return Held(device=device, generation=generation, rounds=rounds, lo=lo, hi=hi)


@st.composite
def _situations(draw: st.DrawFn) -> tuple[Plan, list[Held], int]:
    """A plan, what devices of it and strangers keep, and a round."""
    plan = random_plan(Random(draw(st.integers(0, 2**32))))
    names = st.sampled_from([*plan.devices, "stranger", "other"])
    edges = st.tuples(st.integers(0, plan.layers), st.integers(1, plan.layers + 2)).filter(lambda e: e[0] < e[1])
    item = st.builds(
        lambda device, generation, rounds, edge: _held(device, rounds, edge[0], edge[1], generation),
        names,
        st.integers(0, 2),
        st.integers(0, 3),
        edges,
    )
    return plan, draw(st.lists(item, max_size=20)), draw(st.integers(0, 3))


def _replicated(plan: Plan, rounds: int, random: Random) -> list[Held]:
    """What devices keep when each has taken its snapshot and each lone one has sent a copy to some other device."""
    out = []
    for stage in plan.stages:
        out += [_held(device, rounds, stage.lo, stage.hi, plan.generation) for device in stage.devices]
        others = [device for device in plan.devices if device not in stage.devices]
        if len(stage.devices) == 1 and others:
            out.append(_held(random.choice(others), rounds, stage.lo, stage.hi, plan.generation))
    return out


def _without(held: Collection[Held], device: str) -> list[Held]:
    return [item for item in held if item.device != device]


# holders, newest


def test_holders_are_named_layer_by_layer_and_only_of_the_round() -> None:
    held = [_held("a", 4, 0, 2), _held("b", 4, 1, 3), _held("c", 5, 0, 3), _held("d", 4, 2, 9)]
    assert holders(held, 4, 3) == [{"a"}, {"a", "b"}, {"b", "d"}]
    assert holders([], 4, 2) == [set(), set()]


def test_a_round_with_a_hole_cannot_be_put_together() -> None:
    held = [_held("a", 4, 0, 2), _held("b", 4, 2, 4), _held("a", 6, 0, 2), _held("b", 6, 3, 4)]
    assert newest(held, 4, 0) == 4
    assert newest(held, 5, 0) == 0


def test_pieces_of_one_round_from_different_generations_fit_together() -> None:
    assert newest([_held("a", 4, 0, 2, 1), _held("b", 4, 2, 4, 3)], 4, 0) == 4


def test_the_coordinators_round_is_the_least() -> None:
    held = [_held("a", 4, 0, 2)]
    assert newest(held, 2, 3) == 4
    assert newest(held, 2, 4) == 4
    assert newest(held, 2, 9) == 9
    assert newest([], 2, 0) == 0


@given(_situations(), st.integers(0, 3))
def test_the_newest_is_whole_and_none_after_it_is(given: tuple[Plan, list[Held], int], saved: int) -> None:
    plan, held, _ = given
    found = newest(held, plan.layers, saved)
    assert found >= saved
    assert found == saved or all(holders(held, found, plan.layers))
    assert not any(all(holders(held, later, plan.layers)) for later in range(found + 1, 5))


# secured


def test_a_lone_stage_is_secured_by_its_backup_only() -> None:
    plan = replicas.plan("a | b c", {"a": ("b",)})
    held = [_held("a", 4, 0, 2), _held("b", 4, 2, 4), _held("c", 4, 2, 4)]
    assert not secured(held, 1, 4, plan)
    assert secured([*held, _held("b", 4, 0, 2)], 1, 4, plan)
    assert not secured([*held, _held("b", 5, 0, 2)], 1, 4, plan)
    assert not secured([*held, _held("b", 4, 0, 1)], 1, 4, plan)


def test_snapshots_of_older_generations_and_of_strangers_secure_nothing() -> None:
    plan = replicas.plan("a | b c")
    held = [_held("a", 4, 0, 2), _held("b", 4, 2, 4), _held("c", 4, 2, 4)]
    assert not secured([*held, _held("b", 4, 0, 2, generation=0)], 1, 4, plan)
    assert not secured([*held, _held("d", 4, 0, 2)], 1, 4, plan)


def test_one_device_alone_is_never_secured() -> None:
    plan = replicas.plan("a")
    assert not secured([_held("a", 4, 0, 2), _held("a", 4, 0, 2), _held("a", 4, 1, 2)], 1, 4, plan)


@settings(max_examples=300)
@given(_situations(), st.integers(0, 2))
def test_whatever_single_device_is_lost_a_secured_round_can_be_put_together(
    given: tuple[Plan, list[Held], int], generation: int
) -> None:
    plan, held, rounds = given
    held += _replicated(plan.model_copy(update={"generation": generation}), rounds, Random(len(held)))
    assert secured(held, generation, rounds, plan) or len(plan.devices) == 1
    if secured(held, generation, rounds, plan):
        for device in plan.devices:
            assert newest(_without(held, device), plan.layers, 0) >= rounds


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 5), st.data())
def test_secured_is_exactly_that_no_single_loss_hurts(seed: int, rounds: int, data: st.DataObject) -> None:
    plan = random_plan(Random(seed))
    full = _replicated(plan, rounds, Random(seed))
    gone = data.draw(st.sets(st.integers(0, len(full) - 1), max_size=2))
    held = [item for number, item in enumerate(full) if number not in gone]
    survives = all(newest(_without(held, device), plan.layers, 0) == rounds for device in plan.devices)
    assert secured(held, plan.generation, rounds, plan) == survives


# sources


def test_moved_layers_come_from_the_backup_and_the_rest_stays() -> None:
    # b is lost; c kept a copy of its layers, and takes one of them, a the other one.
    plan = replicas.plan("a | c", generation=2)
    edges = [(0, 3), (3, 6)]
    stages = tuple(s.model_copy(update={"lo": lo, "hi": hi}) for s, (lo, hi) in zip(plan.stages, edges, strict=True))
    plan = plan.model_copy(update={"stages": stages})
    held = [_held("a", 4, 0, 2), _held("c", 4, 2, 4), _held("c", 4, 4, 6)]
    assert sources(held, 4, plan, COORDINATOR) == {
        "a": (Source(device="a", lo=0, hi=2), Source(device="c", lo=2, hi=3)),
        "c": (Source(device="c", lo=3, hi=6),),
    }


def test_who_has_less_to_send_is_asked() -> None:
    plan = replicas.plan("c | d | e")
    held = [_held(name, 4, 0, 6) for name in ("a", "b")]
    come = sources(held, 4, plan, COORDINATOR)
    assert [come[name][0].device for name in ("c", "d", "e")] == ["a", "b", "a"]
    assert all(len(each) == 1 for each in come.values()), "one run is not cut up between equal sources"


def test_what_nobody_keeps_comes_from_the_coordinator() -> None:
    plan = replicas.plan("a | b")
    assert sources([_held("a", 4, 0, 1)], 4, plan, COORDINATOR) == {
        "a": (Source(device="a", lo=0, hi=1), Source(device=COORDINATOR, lo=1, hi=2)),
        "b": (Source(device=COORDINATOR, lo=2, hi=4),),
    }


def test_everything_comes_from_the_only_source() -> None:
    plan = replicas.plan("a | b")
    held = [_held("a", 4, 0, 4), _held("b", 4, 0, 4)]
    assert sources(held, 4, plan, COORDINATOR, only="x") == {
        "a": (Source(device="x", lo=0, hi=2),),
        "b": (Source(device="x", lo=2, hi=4),),
    }


def _check_run(stage: Stage, device: str, runs: tuple[Source, ...], keep: list[set[str]]) -> None:
    """The runs cover the stage once, in order, from devices that have it; the device itself first."""
    assert [run.lo for run in runs] == [stage.lo, *(run.hi for run in runs[:-1])]
    assert runs[-1].hi == stage.hi
    assert all(one.device != next_one.device for one, next_one in itertools.pairwise(runs))
    for run in runs:
        for layer in range(run.lo, run.hi):
            assert run.device in (keep[layer] or {COORDINATOR})
            assert (run.device == device) == (device in keep[layer])


@settings(max_examples=300)
@given(_situations())
def test_sources_cover_each_devices_layers_once_from_who_keeps_them(given: tuple[Plan, list[Held], int]) -> None:
    plan, held, rounds = given
    come = sources(held, rounds, plan, COORDINATOR)
    assert tuple(come) == plan.devices
    keep = holders(held, rounds, plan.layers)
    for stage in plan.stages:
        for device in stage.devices:
            _check_run(stage, device, come[device], keep)


@given(_situations())
def test_the_order_in_which_snapshots_were_told_changes_nothing(given: tuple[Plan, list[Held], int]) -> None:
    plan, held, rounds = given
    assert sources(held, rounds, plan, COORDINATOR) == sources(held[::-1], rounds, plan, COORDINATOR)


# of_names

STATE: Mapping[str, Array] = {
    "a.w": np.zeros(1),
    "a.w2": np.zeros(1),
    "b.mean": np.zeros(1),
    "opt/a.w/exp_avg": np.zeros(1),
    "opt/a.w/exp_avg_sq": np.zeros(1),
    "opt/a.w2/exp_avg": np.zeros(1),
    "opt/step": np.zeros(1),
}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), {"opt/step"}),
        (("a.w",), {"a.w", "opt/a.w/exp_avg", "opt/a.w/exp_avg_sq", "opt/step"}),
        (("b.mean", "nowhere"), {"b.mean", "opt/step"}),
        (("exp_avg", "opt", "a"), {"opt/step"}),
    ],
)
def test_names_bring_their_optimizer_state_and_the_counters(names: tuple[str, ...], found: set[str]) -> None:
    assert of_names(STATE, names).keys() == found


def test_nothing_is_copied() -> None:
    assert of_names(STATE, ["a.w"])["a.w"] is STATE["a.w"]


@given(st.sets(st.from_regex(r"[a-z]{1,3}(\.[a-z0-9_]{1,3}){0,2}", fullmatch=True)), st.data())
def test_a_state_that_was_divided_by_names_is_whole_again(names: set[str], data: st.DataObject) -> None:
    state: dict[str, Array] = {"opt/step": np.array(7)}
    for name in names:
        state[name] = np.zeros(2)
        state[f"opt/{name}/momentum_buffer"] = np.ones(2)
    part = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    one, other = of_names(state, part), of_names(state, names - part)
    assert one.keys() & other.keys() == {"opt/step"}
    assert (one | other).keys() == state.keys()


def test_a_name_may_hold_a_slash() -> None:
    state = {"a/b.w": 1, "opt/a/b.w/exp_avg": 2, "opt/step": 3, "opt/a/c.w/exp_avg": 4}
    assert of_names(state, ["a/b.w"]) == {"a/b.w": 1, "opt/a/b.w/exp_avg": 2, "opt/step": 3}
