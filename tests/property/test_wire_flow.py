from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.flow_world import Weather, World

from asteroid_core.wire.credit import Flow
from asteroid_core.wire.inbox import TENSOR_OVERHEAD
from asteroid_core.wire.outbox import Route
from asteroid_core.wire.tensor import Kind, Tag, Tensor

CHUNK = 2048
FLOW = Flow(window=16 * 1024, held=24 * 1024, retry=0.5, max_retry=4.0, max_tensor=1 << 20)
SIZES = st.lists(st.integers(0, 60_000), min_size=1, max_size=14)
WEATHER = st.builds(
    Weather,
    loss=st.sampled_from([0.0, 0.1, 0.4]),
    double=st.sampled_from([0.0, 0.3]),
    jitter=st.sampled_from([0.0, 0.2]),
)


def tensor_of(size: int, seed: int) -> Tensor:
    return Tensor.of_numpy(np.random.default_rng(seed).integers(0, 255, size).astype(np.uint8))


def content(items: list[tuple[Tag, bytes]]) -> Counter[tuple[Tag, bytes]]:
    return Counter(items)


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, weather=WEATHER, seed=st.integers(0, 2**32), stall=st.sampled_from([0.0, 30.0]))
def test_everything_sent_arrives_exactly_once_and_intact_whatever_the_network_does(
    sizes: list[int], weather: Weather, seed: int, stall: float
) -> None:
    world = World(["a", "b", "c"], FLOW, CHUNK, weather, seed)
    world.enter(1)
    world.nodes["b"].stalled_until = stall
    sent: dict[str, list[tuple[Tag, bytes]]] = {"b": [], "c": []}
    for i, size in enumerate(sizes):
        kind = (Kind.ACT, Kind.STATE, Kind.GATHER)[i % 3]
        tag, tensor = Tag(kind, 1, 0, i), tensor_of(size, i)
        route = Route(("b", "c"), "s") if kind is Kind.GATHER else Route((("b", "c")[i % 2],))
        for member in route.members:
            sent[member].append((tag, bytes(tensor.data)))
        world.nodes["a"].outbox.put(route, tag, tensor, world.now)
    world.run()
    assert world.nodes["a"].outbox.transfers() == 0
    for name, expected in sent.items():
        got = [(r.tag, bytes(r.tensor.data)) for r in world.nodes[name].got]
        assert content(got) == content(expected)
        assert {r.src for r in world.nodes[name].got} <= {"a"}


@settings(max_examples=80, deadline=None)
@given(weather=WEATHER, seed=st.integers(0, 2**32), size=st.integers(1, 40_000), count=st.integers(1, 40))
def test_a_stalled_consumer_bounds_the_memory_of_everybody_and_progress_resumes(
    weather: Weather, seed: int, size: int, count: int
) -> None:
    world = World(["a", "b"], FLOW, CHUNK, weather, seed)
    world.enter(1)
    world.nodes["b"].stalled_until = 100.0
    for i in range(count):
        world.nodes["a"].outbox.put(Route(("b",)), Tag(Kind.ACT, 1, 0, i), tensor_of(size, i), 0.0)
    world.run()
    assert len(world.nodes["b"].got) == count
    one = size + TENSOR_OVERHEAD
    # Complete tensors up to the cap and one, what the last window carries, and the buffers those chunks opened.
    whole_in_window = FLOW.window // min(FLOW.charge(min(size, CHUNK)), FLOW.window) + 1
    assert world.nodes["b"].most_held <= FLOW.held + one + whole_in_window * one
    # First sendings are bounded by a window; repetitions can double what a jittery network still carries.
    chunks_in_window = FLOW.window // FLOW.charge(1)
    packet = CHUNK + 256
    copies = 2 * (1 if weather.loss == weather.double == weather.jitter == 0.0 else 4)
    assert world.most_in_air <= copies * chunks_in_window * packet


@settings(max_examples=80, deadline=None)
@given(weather=WEATHER, seed=st.integers(0, 2**32), lag=st.sampled_from([0.1, 3.0]), sizes=SIZES)
def test_a_peer_that_enters_the_generation_late_still_gets_everything_and_nothing_old(
    weather: Weather, seed: int, lag: float, sizes: list[int]
) -> None:
    world = World(["a", "b"], FLOW, CHUNK, weather, seed)
    world.enter(1)
    for i, size in enumerate(sizes):
        world.nodes["a"].outbox.put(Route(("b",)), Tag(Kind.ACT, 1, 0, i), tensor_of(size, i), 0.0)
    world.run(until=0.0015)
    world.enter(2, "a")
    for i, size in enumerate(sizes):
        world.nodes["a"].outbox.put(Route(("b",)), Tag(Kind.ACT, 2, 0, i), tensor_of(size, i + 100), world.now)
    world.run(until=lag)
    world.enter(2, "b")
    world.nodes["b"].got.clear()
    world.run()
    got = [(r.tag, bytes(r.tensor.data)) for r in world.nodes["b"].got]
    assert content(got) == content(
        [(Tag(Kind.ACT, 2, 0, i), bytes(tensor_of(size, i + 100).data)) for i, size in enumerate(sizes)]
    )
    assert world.nodes["a"].outbox.transfers() == 0
