from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import numpy as np
import pytest
from tests.support.brokers import RunningBroker

from asteroid_core.errors import BrokerError, InputError
from asteroid_core.link.base import Broker, Connected, Disconnected, Event, Message, Subscription, Transport, Will
from asteroid_core.link.bulk import BulkTransport
from asteroid_core.link.memory import MemoryBroker, MemoryTransport
from asteroid_core.link.paho_link import PahoTransport
from asteroid_core.link.tensors import TensorLink
from asteroid_core.wire.credit import Flow
from asteroid_core.wire.tensor import Kind, Tag, Tensor

OPEN = Callable[..., TensorLink]
BACKENDS = ["memory", "mosquitto-bulk", "mosquitto-paho", "rumqttd-bulk", "rumqttd-paho"]


@pytest.fixture(params=BACKENDS)
def open_link(request: pytest.FixtureRequest) -> Iterator[OPEN]:
    """Open links of one job on one broker; closed after the test."""
    job = f"job{uuid4().hex[:8]}"
    links: list[TensorLink] = []
    broker, _, client = request.param.partition("-")
    memory = MemoryBroker()
    settings = Broker("memory") if broker == "memory" else request.getfixturevalue(f"{broker}_broker").settings

    def factory(me: str, generation: int = 1, **options: object) -> TensorLink:
        name = f"{job}-{me}-{len(links)}"
        transport: Transport
        if broker == "memory":
            transport = MemoryTransport(memory, name)
        else:
            transport = (BulkTransport if client == "bulk" else PahoTransport)(settings, name)
        link = TensorLink(transport, settings, job, me, **options)  # type: ignore[arg-type]
        links.append(link.open())
        link.set_generation(generation, ["0"])
        assert link.ready(5)
        return link

    yield factory
    for link in links:
        link.close()


def array(size: int, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(seed).standard_normal(size)


def take(link: TensorLink, count: int, timeout: float = 15.0) -> list[tuple[str, Tag, bytes]]:
    out: list[tuple[str, Tag, bytes]] = []
    for _ in range(count):
        received = link.receive(timeout)
        assert received is not None, (len(out), link.stats())
        link.release(received)
        out.append((received.src, received.tag, bytes(received.tensor.data)))
    return out


def test_tensors_of_any_size_arrive_whole_with_their_sender_and_tag(open_link: OPEN) -> None:
    a, b = open_link("a"), open_link("b")
    sizes = [0, 1, 1000, 40_000, 200_000, 1_500_000]
    for i, size in enumerate(sizes):
        a.send("b", Tag(Kind.ACT, 1, 2, i, 3), Tensor.of_numpy(array(size, i)))
    got = take(b, len(sizes))
    assert got == [("a", Tag(Kind.ACT, 1, 2, i, 3), array(size, i).tobytes()) for i, size in enumerate(sizes)]
    assert a.flush(5)
    assert a.backlog() == 0
    assert a.stats()["chunks_again"] == 0


def test_a_multicast_reaches_every_member_once_and_not_the_sender(open_link: OPEN) -> None:
    links = {name: open_link(name) for name in "abc"}
    for i in range(5):
        links["a"].multicast("0", "abc", Tag(Kind.GATHER, 1, 0, i), Tensor.of_numpy(array(100_000, i)))
    links["a"].multicast("all", "abc", Tag(Kind.VOTE, 1), Tensor.of_bytes(b"yes"))
    for name in "bc":
        got = take(links[name], 6)
        assert {(tag.kind, tag.micro) for _, tag, _ in got} == {(Kind.GATHER, i) for i in range(5)} | {(Kind.VOTE, 0)}
    assert links["a"].flush(5)
    assert links["a"].receive(0) is None


def test_both_directions_at_once(open_link: OPEN) -> None:
    a, b = open_link("a"), open_link("b")
    for i in range(10):
        a.send("b", Tag(Kind.ACT, 1, 0, i), Tensor.of_numpy(array(100_000, i)))
        b.send("a", Tag(Kind.GRAD, 1, 0, i), Tensor.of_numpy(array(100_000, 50 + i)))
    assert len(take(a, 10)) == len(take(b, 10)) == 10
    assert a.flush(5)
    assert b.flush(5)


def test_a_consumer_that_does_not_release_stops_the_sender_and_starves_no_other_kind(open_link: OPEN) -> None:
    a, b = open_link("a"), open_link("b")
    for i in range(12):
        a.send("b", Tag(Kind.STATE, 1, 0, i), Tensor.of_numpy(array(1 << 18, i)))  # 2 MiB each
    held = []
    while (received := b.receive(0.7)) is not None:
        held.append(received)
    assert 4 <= len(held) < 12
    assert a.backlog("b", Kind.STATE) > 0
    a.send("b", Tag(Kind.ACT, 1), Tensor.of_numpy(array(100)))
    other = b.receive(5)
    assert other is not None
    assert other.tag.kind is Kind.ACT
    for received in held:
        b.release(received)
    take(b, 12 - len(held))
    b.release(other)
    assert a.flush(5)


def test_nothing_of_an_older_generation_comes_out_and_a_late_peer_misses_nothing(open_link: OPEN) -> None:
    a, b = open_link("a"), open_link("b")
    a.send("b", Tag(Kind.ACT, 1, 7), Tensor.of_numpy(array(10)))
    assert a.flush(5)
    a.set_generation(2)
    a.send("b", Tag(Kind.ACT, 2, 8), Tensor.of_numpy(array(300_000)))
    time.sleep(0.1)
    b.set_generation(2)
    assert [(tag.generation, tag.round) for _, tag, _ in take(b, 1)] == [(2, 8)]
    assert b.receive(0) is None
    a.send("b", Tag(Kind.ACT, 1, 9), Tensor.of_numpy(array(10)))
    assert a.stats()["stale_sends"] == 1
    with pytest.raises(InputError, match="generation 3"):
        a.send("b", Tag(Kind.ACT, 3), Tensor.of_numpy(array(10)))


def test_the_wills_of_the_worker_and_its_status_ride_on_the_same_connection(open_link: OPEN) -> None:
    topic = f"asteroid/v1/agents/a/worker/{uuid4().hex[:8]}"
    seen = open_link("b")
    a = open_link("a", will=lambda connection: Will(topic, connection.encode()))
    connected = a.events.get(timeout=5)
    assert isinstance(connected, Connected)
    a.publish(topic, b"ready", retain=True, remember=False)
    seen.subscribe(Subscription(topic))
    a_message = next_message(seen, topic)
    assert a_message.payload == b"ready"
    a.close(graceful=False)
    while (payload := next_message(seen, topic).payload) == b"ready":
        pass  # rumqttd may deliver a retained message twice
    assert payload == connected.connection.encode()


def next_message(link: TensorLink, topic: str) -> Message:
    deadline = time.monotonic() + 10
    while True:
        event: Event = link.events.get(timeout=max(0.01, deadline - time.monotonic()))
        if isinstance(event, Message) and event.topic == topic:
            return event


@pytest.mark.mosquitto
@pytest.mark.parametrize("client", [BulkTransport, PahoTransport])
def test_a_broker_restart_loses_nothing(own_mosquitto: RunningBroker, client: type[BulkTransport]) -> None:
    settings = own_mosquitto.settings
    a = TensorLink(client(settings, "ra"), settings, "restart", "a").open()
    b = TensorLink(client(settings, "rb"), settings, "restart", "b").open()
    a.set_generation(1)
    b.set_generation(1)
    try:
        a.publish("asteroid/v1/agents/a/info", b"{}", retain=True)
        for i in range(40):
            a.send("b", Tag(Kind.ACT, 1, 0, i), Tensor.of_numpy(array(125_000, i)))
        got = take(b, 5)
        own_mosquitto.stop(hard=True)
        own_mosquitto.start()
        got += take(b, 35)
        assert sorted(tag.micro for _, tag, _ in got) == list(range(40))
        assert all(data == array(125_000, tag.micro).tobytes() for _, tag, data in got)
        assert a.flush(10)
        kinds: list[type] = []
        while kinds.count(Connected) < 2:
            kinds.append(type(a.events.get(timeout=5)))
        # A broker that is just starting may close the first attempt to come back.
        assert kinds[0] is Connected
        assert set(kinds[1:-1]) == {Disconnected}
        b.subscribe(Subscription("asteroid/v1/agents/a/info"))
        assert next_message(b, "asteroid/v1/agents/a/info").payload == b"{}"
    finally:
        a.close()
        b.close()


@pytest.mark.mosquitto
def test_a_stalled_consumer_behind_default_limits_loses_nothing_and_costs_the_broker_little(
    own_mosquitto: RunningBroker,
) -> None:
    settings = own_mosquitto.settings
    chunk = 16 * 1024
    flow = Flow(window=1 << 20, held=2 << 20)
    senders = [
        TensorLink(BulkTransport(settings, f"s{i}"), settings, "stall", f"s{i}", flow=flow, chunk_bytes=chunk).open()
        for i in range(3)
    ]
    b = TensorLink(BulkTransport(settings, "sb"), settings, "stall", "b", flow=flow, chunk_bytes=chunk).open()
    try:
        before = own_mosquitto.resident()
        for link in (*senders, b):
            link.set_generation(1)
        per_sender = 30
        for link, i in itertools.product(senders, range(per_sender)):
            link.send("b", Tag(Kind.ACT, 1, 0, i), Tensor.of_numpy(array(131_072, i)))  # 1 MiB = 64 chunks each
        time.sleep(1.0)  # the stall itself: 90 MiB = 5760 chunks want to come in
        assert all(link.backlog() > 20 << 20 for link in senders)
        assert own_mosquitto.resident() - before < 16 << 20
        got = take(b, 3 * per_sender)
        assert sorted((src, tag.micro) for src, tag, _ in got) == sorted(
            (f"s{k}", i) for k, i in itertools.product(range(3), range(per_sender))
        )
        assert all(data == array(131_072, tag.micro).tobytes() for _, tag, data in got)
        assert all(link.flush(5) for link in senders)
    finally:
        for link in (*senders, b):
            link.close()


def test_what_a_full_broker_queue_drops_is_sent_again() -> None:
    memory = MemoryBroker(max_queued=10)
    settings = Broker("memory")
    flow = Flow(window=64 * 1024, held=128 * 1024, retry=0.05)
    a = TensorLink(MemoryTransport(memory, "a"), settings, "full", "a", flow=flow, chunk_bytes=2048).open()
    b = TensorLink(MemoryTransport(memory, "b"), settings, "full", "b", flow=flow, chunk_bytes=2048).open()
    try:
        a.set_generation(1)
        b.set_generation(1)
        gate = threading.Event()

        def hang() -> None:
            gate.wait(5)

        b._call(hang)  # the link's thread itself hangs, so nothing is read
        a.send("b", Tag(Kind.ACT, 1), Tensor.of_numpy(array(60_000)))
        deadline = time.monotonic() + 5
        while not memory.dropped and time.monotonic() < deadline:
            time.sleep(0.005)
        assert memory.dropped
        gate.set()
        assert take(b, 1)[0][2] == array(60_000).tobytes()
        assert a.stats()["chunks_again"]
    finally:
        a.close()
        b.close()


def test_a_broker_with_a_tiny_packet_limit_is_refused_with_a_sentence() -> None:
    transport = MemoryTransport(MemoryBroker(max_packet=10_000), "a")
    with pytest.raises(BrokerError, match="takes messages of at most 10000 bytes"):
        TensorLink(transport, Broker("memory"), "tiny", "a").open()
