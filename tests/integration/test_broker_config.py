"""The production configuration of mosquitto lets everybody do their work and nothing else."""

from __future__ import annotations

import queue
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import brokers

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import Broker, Message, Refused, Subscription
from asteroid_core.link.control import ControlLink, open_control
from asteroid_core.wire import acl
from asteroid_core.wire.topics import BY_KEY, TABLE, Role, build

CONFIG = Path(__file__).resolve().parents[2] / "broker_config"
USERS = ("coordinator", "operator", "pi-1", "pi-2")

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(
        brokers.MOSQUITTO is None or shutil.which("mosquitto_passwd") is None or shutil.which("openssl") is None,
        reason="mosquitto or openssl is not installed",
    ),
]


def test_rules_file_is_made_from_the_topic_table() -> None:
    assert (CONFIG / "acl").read_text() == acl.text()


@dataclass
class Site:
    """A broker with the production file."""

    port: int
    authority: Path

    def broker(self, user: str | None, password: str | None = None) -> Broker:
        """How a user reaches it."""
        return Broker("localhost", self.port, user, password or user, ca_file=str(self.authority))

    def open(self, user: str) -> ControlLink:
        """Log in."""
        return open_control(self.broker(user), client_id=f"test-{user}")


def _run(*command: str | Path, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)


def _certificates(directory: Path) -> None:
    new = ("openssl", "req", "-new", "-nodes", "-newkey", "rsa:2048")
    _run(*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", cwd=directory)
    _run(*new, "-subj", "/CN=localhost", "-keyout", "broker.key", "-out", "broker.csr", cwd=directory)
    (directory / "san.txt").write_text("subjectAltName=DNS:localhost")
    _run(
        "openssl", "x509", "-req", "-in", "broker.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", "san.txt", "-out", "broker.crt", cwd=directory,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("production")
    _certificates(directory)
    passwords = directory / "asteroid.passwd"
    passwords.touch()
    for user in USERS:
        _run("mosquitto_passwd", "-b", passwords, user, user, cwd=directory)
    port = brokers.free_port()
    text = (CONFIG / "mosquitto.conf").read_text()
    for old, new in {
        "listener 8883": f"listener {port} 127.0.0.1\nuser root",
        "/etc/mosquitto/certs/": f"{directory}/",
        "/etc/mosquitto/asteroid.passwd": str(passwords),
        "/etc/mosquitto/asteroid.acl": str(CONFIG / "acl"),
        "/var/lib/mosquitto/": f"{directory}/",
    }.items():
        assert old in text
        text = text.replace(old, new)
    config = directory / "mosquitto.conf"
    config.write_text(text)
    broker = brokers.RunningBroker([str(brokers.MOSQUITTO), "-c", str(config)], port)
    broker.start()
    yield Site(port, directory / "ca.crt")
    broker.stop()


def _refused(link: ControlLink, topic: str) -> bool:
    """Publish, then something that is allowed; whether the broker refused the first."""
    link.publish(topic, b"{}", 1)
    assert link.flush(5.0)
    try:
        while True:
            event = link.events.get(timeout=0.3)
            if isinstance(event, Refused) and event.topic == topic:
                return True
    except queue.Empty:
        return False


def _fields(agent: str) -> dict[str, str]:
    return {"agent": agent, "job": "j", "model": "m", "client": "c", "generation": "1", "dst": "pi-2", "src": agent,
            "kind": "act", "stage": "stage0"}  # fmt: skip


def _topic(key: str, agent: str) -> str:
    fields = _fields(agent)
    template = BY_KEY[key].template
    return build(key, **{k: v for k, v in fields.items() if f"<{k}>" in template})


@pytest.mark.parametrize("key", [row.key for row in TABLE])
def test_a_device_writes_what_the_table_says_and_only_under_its_own_name(site: Site, key: str) -> None:
    own = BY_KEY[key].writer is Role.AGENT
    link = site.open("pi-1")
    try:
        assert _refused(link, _topic(key, "pi-1")) is not own
        if own:
            assert _refused(link, _topic(key, "pi-2")) or key == "tensor"
    finally:
        link.close()


def test_a_device_cannot_send_tensors_as_another(site: Site) -> None:
    link = site.open("pi-1")
    assert _refused(link, build("tensor", job="j", generation=1, dst="pi-1", src="pi-2", kind="act"))
    assert not _refused(link, build("tensor", job="j", generation=1, dst="pi-2", src="pi-1", kind="act"))
    link.close()


@pytest.mark.parametrize(
    ("user", "topic", "sees"),
    [
        ("pi-1", build("agent_command", agent="pi-1"), True),
        ("pi-2", build("agent_command", agent="pi-1"), False),
        ("pi-1", build("job_assignment", job="j", agent="pi-1"), True),
        ("pi-2", build("job_assignment", job="j", agent="pi-1"), False),
        ("pi-2", build("tensor", job="j", generation=1, dst="pi-1", src="coordinator", kind="feed"), False),
        ("pi-1", build("tensor", job="j", generation=1, dst="pi-1", src="coordinator", kind="feed"), True),
        ("operator", build("tensor", job="j", generation=1, dst="pi-1", src="coordinator", kind="feed"), False),
        ("operator", build("job_events", job="j"), True),
        ("operator", build("agent_command", agent="pi-1"), True),
        ("pi-2", build("job_state", job="j"), True),
    ],
)
def test_who_reads_what_the_coordinator_says(site: Site, user: str, topic: str, sees: bool) -> None:
    reader, coordinator = site.open(user), site.open("coordinator")
    try:
        reader.subscribe(Subscription("asteroid/#"), Subscription("asteroid-data/#"), Subscription(topic))
        time.sleep(0.1)
        coordinator.publish(topic, b"{}", 1)
        assert coordinator.flush(5.0)
        got = []
        try:
            while True:
                event = reader.events.get(timeout=0.3)
                got += [event.topic] if isinstance(event, Message) else []
        except queue.Empty:
            pass
        assert (topic in got) is sees
    finally:
        reader.close()
        coordinator.close()


@pytest.mark.parametrize("key", ["agent_command", "coordinator_status", "job_state", "coordinator_answer"])
def test_an_operator_asks_but_does_not_command(site: Site, key: str) -> None:
    link = site.open("operator")
    assert _refused(link, _topic(key, "pi-1"))
    assert not _refused(link, _topic("coordinator_request", "pi-1"))
    link.close()


@pytest.mark.parametrize(("user", "password"), [("pi-1", "wrong"), ("stranger", "x"), (None, None)])
def test_a_wrong_login_is_one_sentence(site: Site, user: str | None, password: str | None) -> None:
    with pytest.raises(BrokerError) as caught:
        open_control(site.broker(user, password), client_id="test-wrong")
    assert caught.value.exit_code == 2
    assert caught.value.remedy
