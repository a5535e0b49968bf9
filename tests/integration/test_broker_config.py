"""The production configuration of mosquitto lets everybody do their work and nothing else."""

from __future__ import annotations

import getpass
import queue
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import brokers
from tests.support import site as processes

from asteroid_core.errors import BrokerError
from asteroid_core.link.base import Broker, Message, Refused, Subscription
from asteroid_core.link.control import ControlLink, open_control
from asteroid_core.wire import acl
from asteroid_core.wire.topics import BY_KEY, TABLE, Role, build

CONFIG = Path(__file__).resolve().parents[2] / "broker_config"
USERS = ("coordinator", "operator", "pi-1", "pi-2")

pytestmark = pytest.mark.mosquitto
TOOLS = (brokers.MOSQUITTO, shutil.which("mosquitto_passwd"), shutil.which("openssl"))


def test_rules_file_is_made_from_the_topic_table() -> None:
    assert (CONFIG / "acl").read_text() == acl.text()


@dataclass
class Site:
    """A broker with the production file."""

    port: int
    authority: Path
    directory: Path

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


_MAIN = """pid_file {directory}/mosquitto.pid
persistence true
persistence_location {directory}/
log_dest file {directory}/mosquitto.log
user {user}
include_dir {directory}/conf.d
"""
"""The main file of Debian and Ubuntu, with our directory: the production file stands beside it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if None in TOOLS:
        pytest.skip("mosquitto or openssl is not installed")
    directory = tmp_path_factory.mktemp("production")
    _certificates(directory)
    passwords = directory / "asteroid.passwd"
    passwords.touch()
    for user in USERS:
        _run("mosquitto_passwd", "-b", passwords, user, user, cwd=directory)
    port = brokers.free_port()
    text = (CONFIG / "mosquitto.conf").read_text()
    for old, new in {
        "\nlistener 8883\n": f"\nlistener {port} 127.0.0.1\n",
        "/etc/mosquitto/certs/": f"{directory}/",
        "/etc/mosquitto/asteroid.passwd": str(passwords),
        "/etc/mosquitto/asteroid.acl": str(CONFIG / "acl"),
    }.items():
        assert old in text
        text = text.replace(old, new)
    (directory / "conf.d").mkdir()
    (directory / "conf.d" / "asteroid.conf").write_text(text)
    main = directory / "mosquitto.conf"
    main.write_text(_MAIN.format(directory=directory, user=getpass.getuser()))
    broker = brokers.RunningBroker([str(brokers.MOSQUITTO), "-c", str(main)], port)
    broker.start()
    yield Site(port, directory / "ca.crt", directory)
    broker.stop()


def _drain(link: ControlLink) -> list[object]:
    """Events that are here already."""
    out: list[object] = []
    try:
        while True:
            out.append(link.events.get_nowait())
    except queue.Empty:
        return out


def _refused(link: ControlLink, topic: str) -> bool:
    """Whether the broker refuses a message; a refusal is among the events before the link counts it as answered."""
    link.publish(topic, b"{}", 1)
    assert link.flush(5.0)
    return any(isinstance(event, Refused) and event.topic == topic for event in _drain(link))


def _reads(site: Site, reader_name: str, writer_name: str, topic: str) -> bool:
    """Whether a message arrives; the writer sends another one after it, which every reader gets."""
    own = build("agent_status", agent=writer_name)
    last = build("job_events", job="last") if writer_name == "coordinator" else own
    reader, writer = site.open(reader_name), site.open(writer_name)
    try:
        reader.subscribe(Subscription("asteroid/#"), Subscription("asteroid-data/#"), Subscription(topic))
        assert reader.flush(5.0)
        writer.publish(topic, b"{}", 1)
        writer.publish(last, b"last", 1)
        seen: set[str] = set()
        while True:
            event = reader.events.get(timeout=5.0)
            if isinstance(event, Message):
                if event.topic == last and event.payload == b"last":
                    return topic in seen
                seen.add(event.topic)
    finally:
        reader.close()
        writer.close()


def _topic(key: str, agent: str) -> str:
    """A topic of a row that belongs to a device, or that it sends."""
    fields = {"agent": agent, "src": agent, "dst": "pi-3", "job": "j", "model": "m", "client": "c", "generation": "1",
              "kind": "act", "stage": "stage0"}  # fmt: skip
    return build(key, **{name: value for name, value in fields.items() if f"<{name}>" in BY_KEY[key].template})


@pytest.mark.parametrize("key", [row.key for row in TABLE])
def test_a_device_writes_what_the_table_says_and_only_under_its_own_name(site: Site, key: str) -> None:
    link = site.open("pi-1")
    assert _refused(link, _topic(key, "pi-1")) is (BY_KEY[key].writer is not Role.AGENT)
    assert _refused(link, _topic(key, "pi-2"))
    link.close()


def _tensor(dst: str, src: str, kind: str = "act") -> str:
    return build("tensor", job="j", generation=1, dst=dst, src=src, kind=kind)


def _gather(src: str) -> str:
    return build("multicast", job="j", generation=1, src=src, stage="stage0", kind="gather")


@pytest.mark.parametrize(
    ("reader", "writer", "topic", "sees"),
    [
        ("pi-1", "coordinator", build("agent_command", agent="pi-1"), True),
        ("pi-2", "coordinator", build("agent_command", agent="pi-1"), False),
        ("operator", "coordinator", build("agent_command", agent="pi-1"), True),
        ("pi-1", "coordinator", build("job_assignment", job="j", agent="pi-1"), True),
        ("pi-2", "coordinator", build("job_assignment", job="j", agent="pi-1"), False),
        ("pi-2", "coordinator", build("job_state", job="j"), True),
        ("operator", "coordinator", build("job_events", job="j"), True),
        ("coordinator", "pi-1", build("agent_report", agent="pi-1", job="j"), True),
        ("pi-2", "pi-1", build("agent_report", agent="pi-1", job="j"), False),
        ("pi-1", "coordinator", _tensor("pi-1", "coordinator", "feed"), True),
        ("pi-2", "coordinator", _tensor("pi-1", "coordinator", "feed"), False),
        ("operator", "coordinator", _tensor("pi-1", "coordinator", "feed"), False),
        ("pi-2", "pi-1", _tensor("pi-2", "pi-1"), True),
        ("coordinator", "pi-1", _tensor("pi-2", "pi-1"), False),
        ("coordinator", "pi-1", _tensor("coordinator", "pi-1", "result"), True),
        ("operator", "pi-1", _tensor("operator", "pi-1"), False),
        ("pi-2", "pi-1", _gather("pi-1"), True),
        ("operator", "pi-1", _gather("pi-1"), False),
    ],
)
def test_who_reads_what(site: Site, reader: str, writer: str, topic: str, sees: bool) -> None:
    assert _reads(site, reader, writer, topic) is sees


@pytest.mark.parametrize(
    "topic",
    [
        *(_topic(row.key, "pi-1") for row in TABLE if row.writer is not Role.OPERATOR),
        _tensor("pi-1", "operator"),
        _gather("operator"),
        build("agent_status", agent="operator"),
    ],
)
def test_an_operator_asks_but_neither_commands_nor_sends_tensors(site: Site, topic: str) -> None:
    link = site.open("operator")
    assert _refused(link, topic)
    assert not _refused(link, _topic("coordinator_request", "pi-1"))
    link.close()


@pytest.mark.parametrize(("user", "password"), [("pi-1", "wrong"), ("stranger", "x"), (None, None)])
def test_a_wrong_login_is_one_sentence(site: Site, user: str | None, password: str | None) -> None:
    with pytest.raises(BrokerError) as caught:
        open_control(site.broker(user, password), client_id="test-wrong")
    assert caught.value.exit_code == 2
    assert caught.value.remedy


JOB = """
[model]
name = "mlp"
[data]
source = "digits"
[train]
rounds = 3
batch = 16
micro_batch = 8
[plan]
all_devices = true
stages = 2
"""


def _login(site: Site, user: str) -> tuple[str, ...]:
    """Options of every program for a user."""
    password = site.directory / f"{user}.password"
    password.write_text(f"{user}\n")
    return ("--username", user, "--password-file", str(password), "--ca", str(site.authority))


def test_an_operator_trains_on_devices_with_logins_and_nobody_is_refused(site: Site, tmp_path: Path) -> None:
    cluster = processes.Site(tmp_path, f"localhost:{site.port}", 0)
    try:
        for name in ("pi-1", "pi-2"):
            cluster.start_agent(name, 2000, *_login(site, name))
        with cluster.running("coordinator", *_login(site, "coordinator")) as coordinator:
            assert coordinator.stderr is not None
            assert "Coordinator online" in coordinator.stderr.readline()
            done = cluster.run("train", cluster.job("job", JOB), "--json", *_login(site, "operator"))
            assert done.code == 0, done.err
            assert done.json["phase"] == "done"
            doctor = cluster.run("doctor", "--json", *_login(site, "operator"))
            assert not [item for item in doctor.json if item["level"] == "fail"], doctor.out
            coordinator.terminate()
            told = done.err + coordinator.communicate(timeout=30)[1]
        told += "".join((tmp_path / f"{name}.log").read_text() for name in cluster.agents)
        assert "refuse" not in told
        assert "Traceback" not in told
    finally:
        for process in cluster.agents.values():
            process.terminate()
            process.wait(15)
