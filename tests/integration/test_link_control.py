from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.support import brokers
from tests.support.brokers import RunningBroker

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import (
    Broker,
    Connected,
    Disconnected,
    Event,
    Message,
    Publication,
    Refused,
    Subscription,
    Transport,
    Will,
)
from asteroid_core.link.bulk import BulkTransport
from asteroid_core.link.control import ControlLink, open_control
from asteroid_core.link.memory import MemoryBroker, MemoryTransport
from asteroid_core.link.paho_link import PahoTransport

OPEN = Callable[..., ControlLink]
CLIENTS: list[type[PahoTransport] | type[BulkTransport]] = [PahoTransport, BulkTransport]


@pytest.fixture(params=["memory", "mosquitto", "rumqttd"])
def open_link(request: pytest.FixtureRequest) -> Iterator[OPEN]:
    links: list[ControlLink] = []
    memory = MemoryBroker()

    def factory(**options: object) -> ControlLink:
        name = f"c{uuid4().hex[:10]}"
        if request.param == "memory":
            transport: Transport = MemoryTransport(memory, name)
        else:
            transport = PahoTransport(request.getfixturevalue(f"{request.param}_broker").settings, name)
        links.append(ControlLink(transport, **options).open())  # type: ignore[arg-type]
        return links[-1]

    yield factory
    for link in links:
        link.close()


def wait_for(link: ControlLink, kind: type[Event], timeout: float = 10.0) -> Event:
    deadline = time.monotonic() + timeout
    while True:
        event = link.events.get(timeout=max(0.01, deadline - time.monotonic()))
        if isinstance(event, kind):
            return event


def message(link: ControlLink) -> Message:
    event = wait_for(link, Message)
    assert isinstance(event, Message)
    return event


def test_retained_messages_reach_who_comes_later_and_wildcards_match(open_link: OPEN) -> None:
    root = f"asteroid/v1/{uuid4().hex[:8]}"
    a = open_link()
    a.publish(f"{root}/x/status", b"1", retain=True)
    assert a.flush(5)
    b = open_link()
    b.subscribe(Subscription(f"{root}/+/status"), Subscription(f"{root}/deep/#"))
    first = message(b)
    assert (first.topic, first.payload, first.retain) == (f"{root}/x/status", b"1", True)
    a.publish(f"{root}/deep/er/still", b"2")
    second = message(b)
    assert (second.payload, second.retain) == (b"2", False)
    a.publish(f"{root}/x/status", b"", retain=True)
    assert message(b).payload == b""


def test_a_request_carries_where_to_answer_and_its_number(open_link: OPEN) -> None:
    topic = f"asteroid/v1/{uuid4().hex[:8]}"
    a, b = open_link(), open_link()
    b.subscribe(Subscription(topic))
    assert b.ready(5)
    a.publish(topic, b"{}", response_topic="back/here", correlation=b"42", expiry=60)
    got = message(b)
    assert (got.response_topic, got.correlation) == ("back/here", b"42")


def test_a_will_carries_the_id_of_its_connection_and_a_goodbye_publishes_none(open_link: OPEN) -> None:
    topic = f"asteroid/v1/{uuid4().hex[:8]}/status"
    watcher = open_link()
    watcher.subscribe(Subscription(topic))
    assert watcher.ready(5)

    def will(connection: str) -> Will:
        return Will(topic, json.dumps({"state": "lost", "connection": connection}).encode())

    polite, rude = open_link(will=will), open_link(will=will)
    polite.close()
    connected = wait_for(rude, Connected)
    assert isinstance(connected, Connected)
    rude.close(graceful=False)
    assert json.loads(message(watcher).payload)["connection"] == connected.connection
    assert watcher.events.empty()


@pytest.mark.mosquitto
def test_after_a_broker_restart_will_subscriptions_and_retained_messages_are_there_again(
    own_mosquitto: RunningBroker,
) -> None:
    made: list[str] = []

    def will(connection: str) -> Will:
        made.append(connection)
        return Will("w", connection.encode())

    a = open_control(own_mosquitto.settings, will=will)
    b = open_control(own_mosquitto.settings)
    try:
        b.subscribe(Subscription("status"), Subscription("w"))
        a.publish("status", b"ready", retain=True)
        assert message(b).payload == b"ready"
        own_mosquitto.stop(hard=True)
        lost = wait_for(a, Disconnected)
        assert isinstance(lost, Disconnected)
        assert str(own_mosquitto.port) in lost.reason
        own_mosquitto.start()
        again = wait_for(a, Connected)
        wait_for(b, Connected)
        assert isinstance(again, Connected)
        assert made[-1] == again.connection != made[0]
        assert message(b).payload == b"ready"
        a.close(graceful=False)
        assert message(b).payload == made[-1].encode()
    finally:
        a.close()
        b.close()


@pytest.mark.mosquitto
@pytest.mark.parametrize("client", CLIENTS)
class TestSentences:
    def test_nobody_listens(self, client: type[PahoTransport]) -> None:
        port = brokers.free_port()
        with pytest.raises(BrokerError, match=rf"Nothing listens at 127.0.0.1:{port}.*Start the broker"):
            ControlLink(client(Broker("127.0.0.1", port), "x")).open()

    def test_the_name_is_unknown(self, client: type[PahoTransport]) -> None:
        with pytest.raises(BrokerError, match=r"'no-such-host\.invalid' is not known"):
            ControlLink(client(Broker("no-such-host.invalid"), "x")).open()

    def test_a_silent_port(self, client: type[PahoTransport]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            broker = Broker("127.0.0.1", server.getsockname()[1], connect_timeout=0.3)
            link = ControlLink(client(broker, "x"))
            with pytest.raises(BrokerError, match=r"does not answer within 0\.3 s"):
                link.open()

    def test_wrong_password(self, client: type[PahoTransport], tmp_path: Path) -> None:
        passwords = tmp_path / "passwords"
        passwords.write_text("")
        passwords.chmod(0o644)
        tmp_path.chmod(0o755)
        with brokers.mosquitto(tmp_path, f"password_file {passwords}", anonymous=False) as broker:
            settings = Broker("127.0.0.1", broker.port, username="eve", password="x")
            with pytest.raises(BrokerError, match=rf"127.0.0.1:{broker.port} .*[Cc]heck user"):
                ControlLink(client(settings, "x")).open()

    def test_tls_on_a_plain_port(self, client: type[PahoTransport], mosquitto_broker: RunningBroker) -> None:
        settings = Broker("127.0.0.1", mosquitto_broker.port, tls=True, connect_timeout=2.0)
        with pytest.raises(BrokerError, match="TLS"):
            ControlLink(client(settings, "x")).open()

    def test_a_forbidden_topic(self, client: type[PahoTransport], tmp_path: Path) -> None:
        acl = tmp_path / "acl"
        acl.write_text("topic readwrite ok/#\n")
        acl.chmod(0o700)
        with brokers.mosquitto(tmp_path, f"acl_file {acl}") as broker:
            link = ControlLink(client(broker.settings, "x")).open()
            link.publish("ok/this", b"1")
            link.publish("secret/that", b"1")
            refused = wait_for(link, Refused)
            assert isinstance(refused, Refused)
            assert refused.topic == "secret/that"
            assert "access rules" in refused.reason
            link.close()

    def test_a_message_that_is_too_large_and_one_that_fits(self, client: type[PahoTransport], tmp_path: Path) -> None:
        with brokers.mosquitto(tmp_path, "max_packet_size 50000") as broker:
            link = ControlLink(client(broker.settings, "x")).open()
            link.subscribe(Subscription("t"))
            link.publish("t", bytes(60_000))
            link.publish("t", bytes(40_000))
            refused = wait_for(link, Refused)
            assert isinstance(refused, Refused)
            assert "larger than the 50000" in refused.reason
            assert len(message(link).payload) == 40_000
            link.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    directory.chmod(0o755)
    key, cert = directory / "key.pem", directory / "cert.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost"
    try:
        subprocess.run([*command.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    key.chmod(0o644)
    return key, cert


@pytest.mark.mosquitto
@pytest.mark.parametrize("client", CLIENTS)
def test_tls_carries_messages_both_ways_and_an_unknown_authority_is_named(
    client: type[PahoTransport], certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    key, cert = certificate
    with brokers.mosquitto(tmp_path, f"certfile {cert}", f"keyfile {key}") as broker:
        link = ControlLink(client(Broker("localhost", broker.port, ca_file=str(cert)), "x")).open()
        link.subscribe(Subscription("t"))
        for size in (10, 900_000, 10):
            link.publish("t", bytes(size))
        assert [len(message(link).payload) for _ in range(3)] == [10, 900_000, 10]
        link.close()
        with pytest.raises(BrokerError, match=r"is not trusted.*Set ca_file"):
            ControlLink(client(Broker("localhost", broker.port, tls=True), "x")).open()


def test_memory_broker_delivers_again_what_a_dead_client_had_not_handled() -> None:
    class Killed(ControlLink):
        deaths = 0

        def on_message(self, topic: str, payload: memoryview, retain: bool, *rest: object) -> None:
            self.deaths += 1
            if self.deaths == 1:
                broker.kill("c")
            super().on_message(topic, payload, retain)

    broker = MemoryBroker()
    link = Killed(MemoryTransport(broker, "c", clean_start=False, keep_session=True))
    link.open()
    link.subscribe(Subscription("t"))
    link.publish("t", b"1", retain=True)
    assert [message(link).payload for _ in range(2)] == [b"1", b"1"]
    link.close()


def test_memory_broker_keeps_a_forbidden_topic_and_its_own_messages_from_a_client() -> None:
    broker = MemoryBroker(allowed=lambda client, topic: topic != "no")
    link = ControlLink(MemoryTransport(broker, "c")).open()
    link.subscribe(Subscription("#", no_local=True))
    link.publish("no", b"")
    refused = wait_for(link, Refused)
    assert isinstance(refused, Refused)
    link.publish("mine", b"")
    broker.publish("other", Publication("theirs", (b"",)))
    assert message(link).topic == "theirs"
    link.close()
