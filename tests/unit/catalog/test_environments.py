"""Clusters of the catalog and the problems they pose."""

from __future__ import annotations

import pytest

from asteroid_coordinator.catalog.environments import (
    GOODPUT,
    MESSAGE_S,
    environment,
    micro_sizes_of,
    own_cluster,
)
from asteroid_coordinator.catalog.models import model
from asteroid_core.errors import InputError
from asteroid_core.spec import OptimizerSpec

MODEL = model("mobilenet-v2")


@pytest.mark.parametrize(
    ("id", "names"),
    [
        ("A", "nano-1 nano-2 nano-3 nano-4 nano-5"),
        ("B", "nx-1 tx2-1 tx2-2 nano-1 nano-2 nano-3"),
        ("c", "tx2-1 nano-1 nano-2 nano-3"),
        ("D", "tx2-1 tx2-2 nano-1 nano-2 nano-3"),
    ],
)
def test_environments(id: str, names: str) -> None:
    cluster = environment(id, 100)
    assert [machine.name for machine in cluster.machines] == names.split()
    assert cluster.id == id.upper()


def test_links_have_the_speed_that_tcp_leaves() -> None:
    problem = environment("A", 100).problem(MODEL)
    for site in problem.sites:
        assert site.profile.bytes_per_s == pytest.approx(100e6 / 8 * GOODPUT)
        assert site.profile.message_s == MESSAGE_S["direct"]
        assert site.budget_mb == 3200
        assert site.profile.runtime_mb == 900
    assert problem.network.direct
    assert problem.network.hub_bytes_per_s is None


def test_the_brokers_link_is_like_the_others_unless_told() -> None:
    own = environment("A", 100, "hub").problem(MODEL)
    assert not own.network.direct
    assert own.network.hub_bytes_per_s == own.sites[0].profile.bytes_per_s
    assert own.sites[0].profile.message_s > MESSAGE_S["direct"]
    fast = environment("A", 100, "hub", 1000).problem(MODEL)
    assert fast.network.hub_bytes_per_s == pytest.approx(1000e6 / 8 * GOODPUT)
    assert fast.sites[0].profile.bytes_per_s == pytest.approx(100e6 / 8 * GOODPUT)


def test_a_problem_has_the_models_layers_and_the_jobs_wishes() -> None:
    adam = OptimizerSpec(kind="adamw")
    problem = environment("B", 100).problem(MODEL, 96, adam)
    assert problem.layers == tuple(layer.info for layer in MODEL.layers)
    assert problem.wishes.batch == 96
    assert problem.wishes.micro_sizes == (32, 16, 8, 4, 2, 1)
    assert problem.optimizer == adam
    assert problem.feed is None
    assert environment("B", 100).problem(MODEL, 96, micro_sizes=[3]).wishes.micro_sizes == (3,)


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [(256, (256, 128, 64, 32, 16, 8, 4, 2, 1)), (2048, (256, 128, 64, 32, 16, 8, 4, 2, 1)), (7, (1,)), (1, (1,))],
)
def test_micro_batches_divide_the_batch(batch: int, sizes: tuple[int, ...]) -> None:
    assert micro_sizes_of(batch) == sizes


def test_a_cluster_of_ones_own() -> None:
    cluster = own_cluster("jetson-nano:2, raspberry-pi-5,jetson-nano", 50)
    assert [machine.name for machine in cluster.machines] == ["nano-1", "nano-2", "nano-3", "pi5-1"]
    assert cluster.devices == "3 Jetson Nano, 1 Raspberry Pi 5"
    assert cluster.id == "jetson-nano:3,raspberry-pi-5:1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jetson-nona:3", "did you mean jetson-nano?"),
        ("jetson-nano:x", "KIND:COUNT"),
        ("jetson-nano:0", "KIND:COUNT"),
        ("jetson-nano:-1", "KIND:COUNT"),
        ("jetson-nano:", "KIND:COUNT"),
        ("", "no device ''"),
        ("jetson-nano:33", "more than can be planned"),
    ],
)
def test_a_cluster_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        own_cluster(text, 100)
    assert says in str(caught.value)


@pytest.mark.parametrize("mbit", [0, -1, float("nan"), float("inf")])
def test_speeds_that_are_none(mbit: float) -> None:
    with pytest.raises(InputError, match="no speed"):
        environment("A", mbit)
    with pytest.raises(InputError, match="no speed"):
        environment("A", 100, "hub", mbit)


def test_an_environment_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"no environment 'E'.*Known: A, B, C, D"):
        environment("E", 100)
