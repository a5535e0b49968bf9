"""What a person sees: help, JSON, completion, views that are drawn from messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.site import ROOT, environment

from asteroid_agent.settings import load_settings as agent_settings
from asteroid_coordinator.cli.jobfile import read_job
from asteroid_coordinator.cli.jobview import JobView
from asteroid_coordinator.cli.main import _VERBS, build, run
from asteroid_coordinator.cli.render import live_view, plan_table, progress_line, result_table
from asteroid_coordinator.settings import load_settings
from asteroid_core.errors import InputError
from asteroid_core.login import parse_address, read_password
from asteroid_core.plan import Plan, Share, Stage
from asteroid_core.wire.messages import DeviceMemory, Event, JobState, Metrics, PlanSummary

PLAN = Plan(
    generation=1,
    stages=(
        Stage(lo=0, hi=2, shares=(Share(device="a", samples=4),), warm_up=3),
        Stage(lo=2, hi=5, shares=(Share(device="b", samples=1), Share(device="c", samples=3)), warm_up=1),
    ),
    micro_size=4,
    micro_count=4,
    planner="asteroid",
    predicted_s=0.5,
)
SUMMARY = PlanSummary(
    job="j",
    plan=PLAN,
    layers=5,
    memory=tuple(DeviceMemory(device=d, need_mb=100.0, budget_mb=400.0) for d in "abc"),
)


def _drawn(renderable: Any, width: int = 100) -> str:
    console = Console(width=width, record=True, file=None, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def _view() -> JobView:
    view = JobView("j")
    view.take(JobState(job="j", phase="running", rounds=10, completed=4, durable=2, generation=1))
    view.take(SUMMARY)
    for number in range(4):
        view.take(
            Metrics(job="j", round=number, rounds=10, kind="train", loss=1.0 / (number + 1), samples_per_s=32.0,
                    seconds=0.6, eta_s=3.0, busy={"a": 0.5, "b": 0.25, "c": 0.75})
        )  # fmt: skip
    view.take(Metrics(job="j", round=3, rounds=10, kind="validation", loss=0.3, accuracy=0.9))
    view.take(Event(job="j", seq=1, at=0.0, kind="running", text="round 0 begins on 3 devices"))
    return view


def test_every_verb_has_help_that_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in _VERBS:
        assert run([verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert "Examples:" in text
        assert f"asteroid {verb}" in text
        assert "--json" in text


def test_the_command_without_a_verb_shows_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in _VERBS)
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("asteroid ")


def test_a_wrong_command_line_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["dance"], ["train"], ["train", "a.toml", "--nope"], ["demo", "--epochs", "0"]):
        assert run(words) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("asteroid: ")
        assert "--help" in shown


def test_shell_completion_is_printed() -> None:
    command = [sys.executable, "-m", "asteroid_coordinator.cli.main"]
    env = {**environment(), "_ASTEROID_COMPLETE": "source_bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([*command, "--show-completion", "bash"], capture_output=True, text=True, env=env)
    assert "complete" in done.stdout
    assert build() is not None


def test_topics_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"asteroid/v1/agents/<agent>/status", "asteroid/v1/jobs/<job>/events"} <= {r["topic"] for r in rows}


def test_the_live_view_has_everything_that_was_promised() -> None:
    text = _drawn(live_view(_view()))
    for part in (
        "40 %",
        "round 4/10",
        "loss 0.2500",
        "90.0 %",
        "32 samples/s",
        "3.0 s left",
        "stage 0",
        "50 % busy",
        "b:1, c:3",
    ):
        assert part in text
    assert "round 0 begins" in text


def test_the_same_as_lines_and_as_a_result() -> None:
    view = _view()
    assert progress_line(view) == "j: running, round 4/10, loss 0.2500, validation 90.0 %, 32 samples/s, 3.0 s left"
    assert view.summary()["best_accuracy"] == 0.9
    text = _drawn(result_table(view))
    assert "predicted 500 ms, measured 600 ms" in text


def test_the_plan_as_a_table() -> None:
    text = _drawn(plan_table(SUMMARY), 80)
    assert "100 MB / 400 MB" in text
    assert "25 %" in text
    assert "3 of 4" in text


def test_a_view_forgets_round_times_of_an_older_plan() -> None:
    view = _view()
    assert view.measured_s == 0.6
    view.take(SUMMARY.model_copy(update={"plan": PLAN.model_copy(update={"generation": 2})}))
    assert view.measured_s is None


@pytest.mark.parametrize("name", ["digits", "mobilenet", "bert", "gpt2", "own_model"])
def test_every_example_is_a_job(name: str) -> None:
    spec = read_job(ROOT / "examples" / f"{name}.toml")
    assert spec.name == name.replace("_", "-")
    if spec.data.source.endswith("LICENSE"):
        assert Path(spec.data.source).is_file()


def test_overrides(tmp_path: Path) -> None:
    path = ROOT / "examples" / "digits.toml"
    spec = read_job(path, ["train.rounds=3", "optimizer.lr=0.5", 'plan.devices=["a","b"]'], "gpipe")
    assert (spec.train.rounds, spec.train.epochs, spec.optimizer.lr) == (3, None, 0.5)
    assert (spec.plan.devices, spec.plan.planner) == (("a", "b"), "gpipe")
    for wrong in ("train", "train.batch", "train.batch.x=1", "=3"):
        with pytest.raises(InputError):
            read_job(path, [wrong])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broker.lan", ("broker.lan", 1883, False)),
        ("broker.lan:99", ("broker.lan", 99, False)),
        ("mqtts://broker.lan", ("broker.lan", 8883, True)),
        ("[::1]:77", ("::1", 77, False)),
        ("fe80::1", ("fe80::1", 1883, False)),
    ],
)
def test_broker_addresses(text: str, found: tuple[str, int, bool]) -> None:
    assert parse_address(text) == found


def test_the_command_line_goes_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cli.toml"
    file.write_text('state_dir = "/var/x"\n[broker]\nhost = "from-file"\nusername = "u"\n')
    settings = load_settings(environ={"HOME": str(tmp_path)}, files=[file])
    assert (settings.host, settings.username, str(settings.state_dir)) == ("from-file", "u", "/var/x")
    environ = {"HOME": str(tmp_path), "ASTEROID_BROKER": "from-env:7"}
    assert load_settings(environ=environ, files=[file]).port == 7
    assert load_settings(broker="given", environ=environ, files=[file]).host == "given"
    file.write_text("[broker]\nhosst = 3\n")
    with pytest.raises(InputError, match="hosst"):
        load_settings(environ={}, files=[file])


def test_an_agents_settings(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('name = "pi-1"\n[broker]\nhost = "b"\n[lend]\ncores = 1.5\n')
    settings = agent_settings(file, {"memory_mb": 100}, {})
    assert (settings.name, settings.lend.cores, settings.lend.memory_mb) == ("pi-1", 1.5, 100)
    assert agent_settings(file, {"name": "pi-2", "broker": "mqtts://c"}, {}).broker.port == 8883
    assert agent_settings(None, {}, {}, host="My_Host.lan").name == "my-host"
    for text in ("[lend]\ncores = -1\n", "lend = 3\n", "nmae = 'x'\n", "x = ["):
        file.write_text(text)
        with pytest.raises(InputError):
            agent_settings(file, {}, {})


def test_the_password_comes_from_systemd_first(tmp_path: Path) -> None:
    own, credentials = tmp_path / "own", tmp_path / "credentials"
    own.write_text("mine\nnot this\n")
    credentials.mkdir()
    assert read_password(own, {}) == "mine"
    assert read_password(own, {"CREDENTIALS_DIRECTORY": str(credentials)}) == "mine"
    (credentials / "mqtt.password").write_text("systemd's\n")
    assert read_password(own, {"CREDENTIALS_DIRECTORY": str(credentials)}) == "systemd's"
    (credentials / "mqtt.password").write_text("")
    assert read_password(own, {"CREDENTIALS_DIRECTORY": str(credentials)}) is None
    with pytest.raises(InputError):
        read_password(tmp_path / "none", {})
