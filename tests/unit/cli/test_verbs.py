"""Every verb with everything that can be wrong around it: exit code 2, one sentence, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support import brokers
from tests.support.site import environment

from asteroid_coordinator.cli import session
from asteroid_coordinator.cli.main import _VERBS, run
from asteroid_coordinator.store import Store
from asteroid_core.link.control import open_control
from asteroid_core.wire.messages import CoordinatorStatus, JobState, encode
from asteroid_core.wire.topics import build

JOB = '[model]\nname = "mlp"\n[data]\nsource = "digits"\n[train]\nepochs = 1\n'
ON_BROKER = ("devices", "profile", "plan", "train", "jobs", "status", "stop", "resume", "export", "coordinator")
"""Verbs that reach a broker; ``doctor`` has a report instead of a sentence, ``demo`` a broker of its own."""
ASK_A_COORDINATOR = tuple(verb for verb in ON_BROKER if verb != "devices")


@pytest.fixture
def words(tmp_path: Path) -> dict[str, list[str]]:
    """A command line for each verb."""
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    made = {verb: [verb] for verb in _VERBS}
    for verb in ("profile", "plan", "train"):
        made[verb].append(str(job))
    for verb in ("status", "stop", "resume", "export"):
        made[verb].append("nobody")
    for line in made.values():
        line += ["--state-dir", str(tmp_path / "state")]
    return made


def _sentence(capsys: pytest.CaptureFixture[str], *line: str, code: int = 2) -> str:
    """Run a command that must fail; returns its only sentence."""
    found = run(line)
    shown = capsys.readouterr()
    assert found == code, shown.err
    assert "Traceback" not in shown.err + shown.out
    assert shown.out == ""
    complaints = [text for text in shown.err.splitlines() if text.startswith("asteroid: ")]
    assert len(complaints) == 1, shown.err
    return complaints[0]


def test_no_verb_is_forgotten_here() -> None:
    assert {*ON_BROKER, "doctor", "demo", "topics", "simulate"} == set(_VERBS)


@pytest.mark.parametrize("verb", ON_BROKER)
@pytest.mark.parametrize("json_too", [False, True])
def test_a_broker_that_is_not_there(
    verb: str, json_too: bool, words: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--json"] if json_too else []
    assert "Nothing listens" in _sentence(capsys, *words[verb], "--broker", "127.0.0.1:1", *more)


def test_doctor_without_a_broker_reports_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", "--broker", "127.0.0.1:1"]) == 2
    findings = json.loads(capsys.readouterr().out)
    network = next(f for f in findings if f["check"] == "network")
    assert network["level"] == "fail"
    assert network["remedy"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """Address of a mosquitto that wants a password, a file with the right one, a file with a wrong one."""
    if brokers.MOSQUITTO is None or shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto is not installed")
    directory = tmp_path_factory.mktemp("guarded")
    passwords, right, wrong = directory / "passwd", directory / "right", directory / "wrong"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "me", "secret"], check=True, capture_output=True)
    right.write_text("secret\n")
    wrong.write_text("guess\n")
    with brokers.mosquitto(directory / "broker", f"password_file {passwords}", anonymous=False) as running:
        yield f"{running.host}:{running.port}", right, wrong


@pytest.mark.mosquitto
@pytest.mark.parametrize("verb", ON_BROKER)
def test_a_wrong_password_and_none(
    verb: str, words: dict[str, list[str]], guarded: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    address, _, wrong = guarded
    login = ("--broker", address, "--username", "me", "--password-file", str(wrong))
    said = _sentence(capsys, *words[verb], *login)
    assert "does not let this user in" in said
    assert "guess" not in said
    assert "does not let" in _sentence(capsys, *words[verb], "--broker", address)


@pytest.mark.mosquitto
def test_the_right_password(guarded: tuple[str, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    address, right, _ = guarded
    assert run(["devices", "--json", "--broker", address, "--username", "me", "--password-file", str(right)]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker with a coordinator of a later protocol version."""
    if not brokers.HAS_IOTCORE:
        pytest.skip("iotcore is not installed")
    with brokers.rumqttd(tmp_path_factory.mktemp("newer")) as running:
        link = open_control(running.settings, client_id="newer")
        status = CoordinatorStatus(state="online", connection="c", session="s", protocol=99)
        link.publish(build("coordinator_status"), encode(status), retain=True)
        assert link.flush(5)
        yield f"{running.host}:{running.port}"
        link.close()


@pytest.mark.parametrize("verb", ASK_A_COORDINATOR)
def test_a_coordinator_of_another_protocol_version(
    verb: str, words: dict[str, list[str]], newer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _sentence(capsys, *words[verb], "--broker", newer)
    assert "speaks protocol version 99" in said
    assert said.endswith("Upgrade this command.")


def test_doctor_says_the_same(newer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", "--broker", newer]) == 1
    findings = json.loads(capsys.readouterr().out)
    found = next(f for f in findings if f["check"] == "coordinator")
    assert (found["level"], found["remedy"]) == ("fail", "Upgrade this command.")


@pytest.fixture
def address(rumqttd_broker: brokers.RunningBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker with nobody on it; waiting for somebody is short."""
    monkeypatch.setattr(session, "FIND_S", 0.1)
    return f"{rumqttd_broker.host}:{rumqttd_broker.port}"


@pytest.mark.parametrize("verb", ["stop", "status", "export"])
def test_nobody_there_to_answer(
    verb: str, words: dict[str, list[str]], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no coordinator on the broker" in _sentence(capsys, *words[verb], "--broker", address)


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_nobody_to_leave_a_job_to(
    verb: str, words: dict[str, list[str]], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _sentence(capsys, *words[verb], "--detach", "--broker", address)
    assert said.startswith("asteroid: Nobody would train it")


def test_jobs_of_this_machine_as_json(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    store = Store(state)
    store.create_job("j", "{}")
    store.set_snapshot("j", JobState(job="j", phase="stopped", rounds=9, completed=4).model_dump_json(by_alias=True))
    store.append("j", {"kind": "stopped", "text": "stopped at round 4", "at": 0.0, "data": {}})
    store.close()

    def ask(*line: str) -> Any:
        assert run([*line, "--json", "--broker", address, "--state-dir", str(state)]) == 0
        shown = capsys.readouterr().out
        assert len(shown.splitlines()) == 1
        return json.loads(shown)

    assert [(j["job"], j["phase"]) for j in ask("jobs")] == [("j", "stopped")]
    answer = ask("status", "j")
    assert (answer["completed"], answer["events"][0]["text"]) == (4, "stopped at round 4")
    line = ("export", "j", "--broker", address, "--state-dir", str(state))
    assert "no model file yet" in _sentence(capsys, *line)
    model, copy = state / "jobs" / "j" / "model.safetensors", tmp_path / "copy"
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(b"weights")
    assert "own copy" in _sentence(capsys, *line, "-o", str(model))
    assert "Is a directory" in _sentence(capsys, *line, "-o", str(tmp_path))
    assert ask("export", "j", "-o", str(copy)) == {"job": "j", "file": str(copy), "bytes": 7}
    assert copy.read_bytes() == model.read_bytes() == b"weights"


def test_empty_lists_are_json_too(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("jobs", "devices"):
        assert run([verb, "--json", "--broker", address, "--state-dir", str(tmp_path)]) == 0
        assert json.loads(capsys.readouterr().out) == []
    page = tmp_path / "topics.md"
    assert run(["topics", "--json", "--docs", str(page)]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(page)}


@pytest.mark.parametrize("verb", ["status", "stop", "resume", "export"])
def test_a_name_that_no_job_has(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("../escape", "Bad_Name", "coordinator", ""):
        assert "is not a job name" in _sentence(capsys, verb, name, "--broker", "127.0.0.1:1")


@pytest.mark.parametrize("verb", ["profile", "plan", "train"])
def test_job_files_that_cannot_be_read(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(128, 256)))
    for path, says in ((tmp_path / "none.toml", "no job file"), (tmp_path, "directory"), (binary, "cannot be read")):
        assert says in _sentence(capsys, verb, str(path))
    good = tmp_path / "good.toml"
    good.write_text(JOB)
    for override, says in (
        ("train.rounds", "is not section.field=value"),
        ("train.epochs.x=1", "has no fields"),
        ("train.epocs=2", "did you mean epochs?"),
        ("train.epochs=-1", "train.epochs"),
    ):
        assert says in _sentence(capsys, verb, str(good), "--set", override)


def test_plan_refuses_a_place_for_its_files_before_anybody_measures(
    tmp_path: Path, words: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--svg", "--trace"):
        for place in (tmp_path, tmp_path / "none" / "file"):
            line = [*words["plan"], option, str(place), "--broker", "127.0.0.1:1"]
            assert f"{place} cannot be written" in _sentence(capsys, *line)


def test_demo_refuses_places_and_brokers(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "file"
    file.touch()
    assert "cannot be used" in _sentence(capsys, "demo", "--keep", str(file))
    assert "cannot be used" in _sentence(capsys, "demo", "--port", address.partition(":")[2])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asteroid_coordinator.cli.main", "demo"]
    env = {**environment(), "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    children: list[psutil.Process] = []
    try:
        assert demo.stderr is not None
        assert any(line.startswith("Agents: ") for line in demo.stderr)
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 5  # a broker and four agents
        demo.send_signal(number)
        _, said = demo.communicate(timeout=60)
        assert demo.returncode == 128 + number, said
        assert f"ended by {number.name}" in said
        assert not [child for child in children if child.is_running()]
        assert not list(tmp_path.glob("asteroid-demo-*"))
    finally:
        demo.kill()
        demo.wait()
        for child in children:
            if child.is_running():
                child.kill()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_for_each_shell(shell: str) -> None:
    env = {**environment(), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "asteroid_coordinator.cli.main", "--show-completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "_ASTEROID_COMPLETE" in done.stdout
    assert os.linesep in done.stdout
