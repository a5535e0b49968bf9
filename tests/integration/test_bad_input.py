"""Whatever is wrong: one sentence that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import brokers
from tests.support.site import environment

from asteroid_coordinator import profiling
from asteroid_coordinator.cli.main import run
from asteroid_core.errors import BrokerError
from asteroid_core.link.base import Subscription
from asteroid_core.link.control import open_control
from asteroid_core.link.tensors import open_tensors
from asteroid_core.wire.messages import AgentInfo, AgentStatus, encode
from asteroid_core.wire.topics import build

GOOD = '[model]\nname = "mlp"\n[data]\nsource = "digits"\n[train]\nepochs = 1\n'


def _fails(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Run a command that must fail as a person's mistake; returns its last sentence."""
    code = run([*map(str, words)])
    shown = capsys.readouterr()
    assert code == 2, shown.err
    assert "Traceback" not in shown.err + shown.out
    last = shown.err.strip().splitlines()[-1]
    assert last.startswith("asteroid")
    return last


@pytest.fixture
def broker(rumqttd_broker: brokers.RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a broker without devices; waits are short."""
    monkeypatch.setattr(profiling, "DEVICES_S", 0.3)
    monkeypatch.setenv("ASTEROID_STATE_DIR", str(tmp_path / "state"))
    return f"{rumqttd_broker.host}:{rumqttd_broker.port}"


def _job(directory: Path, text: str) -> Path:
    path = directory / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = [", "is not TOML"),
        ("[model]\n", "model.name"),
        (GOOD + "batchh = 3\n", "did you mean batch?"),
        (GOOD + 'batch = "many"\n', "train.batch"),
        (GOOD + "batch = 64\nmicro_batch = 7\n", "not a multiple"),
        (GOOD.replace("epochs = 1", "batch = 8"), "give epochs or rounds"),
        ('name = "No Good!"\n' + GOOD, "No Good!"),
    ],
)
def test_broken_job_files(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in _fails(capsys, "train", _job(tmp_path, text), "--broker", "127.0.0.1:1")


def test_no_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no job file" in _fails(capsys, "train", tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"mlp"', '"mlpp"', "did you mean mlp?"),
        ('"mlp"', '"no_such_package:model"', "no_such_package"),
        ('"mlp"', '"transformer"', "takes rows of tokens"),
        ('"digits"', '"/no/such/file.npz"', "/no/such/file.npz"),
        ("epochs = 1", "epochs = 1\nbatch = 100000", "less than one batch"),
    ],
)
def test_jobs_that_cannot_be(
    old: str, new: str, says: str, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _fails(capsys, "train", _job(tmp_path, GOOD.replace(old, new)), "--broker", broker)


def test_no_devices(broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No device is ready" in _fails(capsys, "train", _job(tmp_path, GOOD), "--broker", broker)


def test_a_device_that_is_not_there(broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = _job(tmp_path, GOOD + '[plan]\ndevices = ["nobody"]\n')
    assert "nobody" in _fails(capsys, "plan", job, "--broker", broker)


def test_an_agent_of_another_protocol_version(
    own_rumqttd: brokers.RunningBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiling, "DEVICES_S", 0.3)
    link = open_control(own_rumqttd.settings, client_id="old-agent")
    status = AgentStatus(agent="old", state="ready", connection="c", protocol=99)
    info = AgentInfo(agent="old", cores=1, memory_mb=1000, budget_mb=1000, protocol=99)
    link.publish(build("agent_status", agent="old"), encode(status), retain=True)
    link.publish(build("agent_info", agent="old"), encode(info), retain=True)
    assert link.flush(5)
    address = f"{own_rumqttd.host}:{own_rumqttd.port}"
    says = _fails(capsys, "train", _job(tmp_path, GOOD), "--broker", address, "--state-dir", tmp_path / "state")
    link.close()
    assert "old speaks protocol 99" in says
    assert "upgrade" in says


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:1", "Nothing listens"), ("no-such-host.invalid", "is not known"), ("127.0.0.1:99999", "TCP port")],
)
@pytest.mark.parametrize("verb", ["devices", "jobs", "doctor"])
def test_a_broker_that_cannot_be_reached(
    verb: str, address: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([verb, "--broker", address])
    shown = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in shown.err
    if verb != "doctor" or "99999" in address:
        assert says in shown.err


def test_an_agent_says_the_same() -> None:
    command = [sys.executable, "-m", "asteroid_agent.main", "--config", os.devnull]
    for more, says in (
        (["--broker", "broker:99999"], "not a TCP port"),
        (["--name", "Not Allowed"], "Not Allowed"),
        (["--config", "/no/such/agent.toml"], "no settings file"),
        (["--ca", "/no/such/ca.crt"], "no certificate file"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True, env=environment(), timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert says in done.stderr


def test_the_demo_says_that_its_port_is_in_use(
    rumqttd_broker: brokers.RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot be used" in _fails(capsys, "demo", "--port", str(rumqttd_broker.port))


@pytest.mark.mosquitto
@pytest.mark.skipif(
    brokers.MOSQUITTO is None or shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed"
)
def test_a_wrong_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passwords, right, wrong = tmp_path / "passwd", tmp_path / "right", tmp_path / "wrong"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "me", "secret"], check=True, capture_output=True)
    right.write_text("secret\n")
    wrong.write_text("guess\n")
    with brokers.mosquitto(tmp_path / "mosquitto", f"password_file {passwords}", anonymous=False) as running:
        login = ("--broker", f"{running.host}:{running.port}", "--username", "me", "--password-file")
        assert "does not let this user in" in _fails(capsys, "devices", *login, wrong)
        assert run(["devices", "--wait", "0", *map(str, login), str(right)]) == 0
        agent = [sys.executable, "-m", "asteroid_agent.main", "--config", os.devnull, "--name", "me"]
        done = subprocess.run(
            [*agent, *login, str(wrong)], capture_output=True, text=True, env=environment(), timeout=60
        )
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "does not let this user in" in done.stderr


@pytest.mark.mosquitto
@pytest.mark.skipif(brokers.MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_broker_that_forbids_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read asteroid/#\n")
    with brokers.mosquitto(tmp_path / "mosquitto", f"acl_file {rules}") as running:
        address = f"{running.host}:{running.port}"
        says = _fails(capsys, "train", _job(tmp_path, GOOD), "--broker", address, "--state-dir", tmp_path / "state")
        assert "asteroid/v1/coordinator/status" in says
        command = [
            sys.executable,
            "-m",
            "asteroid_agent.main",
            "--config",
            os.devnull,
            "--name",
            "pi",
            "--broker",
            address,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert "agents/pi/status" in done.stderr


@pytest.mark.mosquitto
@pytest.mark.skipif(brokers.MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_small_packet_limit_is_refused_and_a_larger_one_adapted_to(tmp_path: Path) -> None:
    with (
        brokers.mosquitto(tmp_path / "small", "max_packet_size 15000") as running,
        pytest.raises(BrokerError, match="15000") as caught,
    ):
        open_tensors(running.settings, "job", "a")
    assert caught.value.remedy
    with brokers.mosquitto(tmp_path / "larger", "max_packet_size 40000") as running:
        link = open_tensors(running.settings, "job", "a")
        link.subscribe(Subscription("asteroid/#"))
        assert int(link.stats()["chunk_bytes"]) < 40000
        link.close()
