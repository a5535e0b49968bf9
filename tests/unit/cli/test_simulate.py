"""``asteroid simulate``: no broker, a table a person can read, JSON, files, and one sentence for every wrong word."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from asteroid_coordinator.catalog.comparing import PLANNERS, Case, Row, compare, micro_text, plan_text, plans_text
from asteroid_coordinator.catalog.environments import environment
from asteroid_coordinator.catalog.models import model
from asteroid_coordinator.cli.main import run
from asteroid_coordinator.cli.simulate import notes, rate
from asteroid_coordinator.planner.compare import Verdict
from asteroid_core.plan import Plan, Share, Stage

JOB = '[model]\nname = "cnn"\n[data]\nsource = "digits"\n[train]\nrounds = 3\nbatch = 24\n[optimizer]\nkind = "adamw"\n'


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def _data(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(["simulate", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def _lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert run(["simulate", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_without_a_word_all_planners_on_b_at_100(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys)
    assert lines[0] == "mobilenet-v2 on B at 100 Mbit/s, batch 256"
    assert lines[1] == "B: 1 Jetson Xavier NX, 2 Jetson TX2, 3 Jetson Nano"
    assert lines[2].split() == ["PLANNER", "STAGES", "SAMPLES/S", "SPEED-UP", "MEMORY", "BUSY"]
    assert [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in PLANNERS] == list(PLANNERS)
    assert any("busy" in line for line in lines[-8:])  # the chart
    assert max(map(len, lines)) <= 80


def test_a_wide_terminal_has_more_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    titles = _lines(capsys, "-p", "dp,on-device")[2].split()
    assert {"MICRO", "ROUND"} < set(titles)


def test_json_has_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "mobilenet-v2,resnet-50", "-e", "a", "-e", "C", "--mbit", "100,1000", "-p", "dp", "-p", "on-device")
    cases = _data(capsys, *words)["cases"]
    assert [(c["model"], c["environment"], c["mbit"]) for c in cases] == [
        (name, place, speed)
        for name in ("mobilenet-v2", "resnet-50")
        for place in ("A", "C")
        for speed in (100.0, 1000.0)
    ]
    for case in cases:
        assert [row["planner"] for row in case["planners"]] == ["dp", "on-device"]
        assert case["network"] == "direct"
        first = case["planners"][0]
        for row in case["planners"]:
            assert row["samples_per_s"] == pytest.approx(case["batch"] / row["round_s"])
            assert row["speed_up_of_first"] == pytest.approx(row["round_s"] / first["round_s"])
            assert set(row["memory"]) == set(row["busy"])
            assert all(0 < m["need_mb"] <= m["lent_mb"] for m in row["memory"].values())
            assert all(0 < part <= 1 for part in row["busy"].values())
    slow, fast = cases[0]["planners"][0], cases[1]["planners"][0]
    assert fast["round_s"] < slow["round_s"]


def test_one_device_does_not_use_its_link(capsys: pytest.CaptureFixture[str]) -> None:
    cases = _data(capsys, "-p", "on-device", "--mbit", "1", "--mbit", "1000")["cases"]
    assert cases[0]["planners"][0]["round_s"] == cases[1]["planners"][0]["round_s"]


def test_the_broker_in_the_middle_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    def dp(*words: str) -> float:
        case = _data(capsys, "-p", "dp", "-e", "A", *words)["cases"][0]
        return float(case["planners"][0]["round_s"])

    direct, hub, fast = dp(), dp("--network", "hub"), dp("--network", "hub", "--hub-mbit", "1000")
    assert direct < hub
    assert fast < hub


def test_a_sweep_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(capsys, "--sweep", "-p", "dp,on-device")
    assert lines[2].split() == ["SAMPLES/S", "AT", "MBIT/S", "25", "50", "100", "250", "500", "1000"]
    values = [float(value) for value in lines[3].split()[1:]]
    assert values == sorted(values)
    assert len(values) == 6


def test_a_cluster_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    case = _data(capsys, "--devices", "raspberry-pi-5:2,jetson-nano", "-p", "dp")["cases"][0]
    assert case["devices"] == {"pi5-1": "raspberry-pi-5", "pi5-2": "raspberry-pi-5", "nano-1": "jetson-nano"}
    assert _lines(capsys, "--devices", "raspberry-pi-5", "-p", "on-device")[0].startswith(
        "mobilenet-v2 on 1 Raspberry Pi 5 at 100 Mbit/s"
    )


def test_a_job_brings_model_batch_and_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    case = _data(capsys, "--job", str(job), "-p", "on-device")["cases"][0]
    assert (case["model"], case["batch"], case["optimizer"]) == ("cnn", 24, "adamw")
    assert "B=24 M=1" in case["planners"][0]["plans"][0]  # sizes that `plan` would try, not powers of two only
    assert _data(capsys, "--job", str(job), "-p", "on-device", "--batch", "48")["cases"][0]["batch"] == 48


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, trace = tmp_path / "round.svg", tmp_path / "round.json"
    assert run(["simulate", "-p", "gpipe", "-e", "C", "--svg", str(svg), "--trace", str(trace)]) == 0
    assert "Wrote" in capsys.readouterr().err
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    names = {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "M"}
    assert names == {"tx2-1", "nano-1", "nano-2", "nano-3"}


def test_what_fits_nowhere_says_why_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "resnet-50", "-e", "A", "--batch", "1", "-p", "dp,on-device")
    lines = _lines(capsys, *words)
    row = next(line for line in lines if line.startswith("dp "))
    assert "does not fit" in row
    assert any(line.startswith("dp: ") for line in lines)
    rows = _data(capsys, *words)["cases"][0]["planners"]
    assert [row["fits"] for row in rows] == [False, True]
    assert rows[0]["why"]
    assert rows[1]["speed_up_of_first"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-m", "mobilnet"), "did you mean mobilenet-v2?"),
        (("-e", "Q"), "Known: A, B, C, D."),
        (("-p", "asterod"), "did you mean asteroid?"),
        (("--devices", "jetson-nona:3"), "did you mean jetson-nano?"),
        (("--network", "hubb"), "did you mean hub?"),
        (("--mbit", "fast"), "not a number"),
        (("--mbit", "0"), "no speed"),
        (("--mbit", "nan"), "no speed"),
        (("--batch", "0"), "greater than or equal to 1"),
        (("--sweep", "--mbit", "100"), "--sweep has speeds of its own"),
        (("--hub-mbit", "100"), "--network hub"),
        (("--devices", "jetson-nano", "-e", "A"), "Give one of them."),
        (("--job", "nowhere.toml"), "no job file"),
        (("--job", "nowhere.toml", "-m", "cnn"), "Give one of them."),
        (("-m", "all", "--svg", "x.svg"), "4 cases"),
        (("--svg", "/nowhere/x.svg"), "no directory /nowhere"),
        (("-p", "exhaustive"), "exhaustive takes at most"),
        (("-p", "dp", "-m", "resnet-50", "--batch", "1", "--svg", "x.svg"), "no round to draw"),
    ],
)
def test_one_sentence_for_every_wrong_word(
    words: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.startswith("asteroid: ")
    assert len(shown.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(_lines(capsys, "--list", "-v"))
    for word in ("jetson-nano", "mini-pc-n100", "resnet-50", "gpt2-mini", "hetpipe", "data sheet:", "assumption:"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    document = _data(capsys, "--list")
    assert document["devices"]["jetson-nano"]["peak_flops"]["why"].startswith("data sheet")
    assert document["environments"]["A"] == {"jetson-nano": 5}


def test_it_starts_without_torch_and_without_a_broker() -> None:
    code = (
        "import sys\n"
        "from asteroid_coordinator.cli.main import run\n"
        "assert run(['simulate', '-p', 'on-device', '--broker', '127.0.0.1:1']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    path = [p for p in sys.path if p and Path(p).is_dir()]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_plans_in_short() -> None:
    cluster = environment("B", 100)

    def stage(lo: int, hi: int, *devices: str) -> Stage:
        return Stage(lo=lo, hi=hi, shares=tuple(Share(device=d, samples=4 // len(devices)) for d in devices), warm_up=1)

    one = Plan(generation=1, stages=(stage(0, 2, "nx-1"), stage(2, 5, "tx2-2", "tx2-1")), micro_size=4, micro_count=8)
    two = Plan(
        generation=1, stages=(stage(0, 2, "nano-1", "nano-3"), stage(2, 5, "nano-2")), micro_size=4, micro_count=8
    )
    assert plan_text(one, cluster) == "nx | 2 tx2"
    verdict = Verdict("hetpipe", (one, two), 1.0)
    assert plans_text(verdict, cluster) == "nx | 2 tx2 && 2 nano | nano"
    assert micro_text(verdict) == "8 x 4"
    assert micro_text(Verdict("dp")) == "-"


def test_who_is_faster_than_the_first_is_named() -> None:
    case = Case(model("mobilenet-v2"), environment("A", 100))
    rows = [
        Row(Verdict("asteroid", round_s=2.0), 256, 1.0),
        Row(Verdict("dp", round_s=1.0), 256, 0.5),
        Row(Verdict("eddl", round_s=4.0), 256, 2.0),
        Row(Verdict("gpipe", why="Too large."), 256, None),
    ]
    assert notes(case, rows) == ["dp is 2 times as fast as asteroid.", "gpipe: Too large."]
    assert notes(case, rows, True)[0].startswith("dp at 100 Mbit/s")


def test_planners_are_told_of_one_by_one() -> None:
    told: list[str] = []
    rows = compare(Case(model("mobilenet-v2"), environment("C", 100)), ["on-device", "dp"], told.append)
    assert told == ["on-device", "dp"]
    assert rows[0].speed_up == 1.0
    assert rows[0].fullest is not None
    assert rows[0].fullest[0] == "tx2-1"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (2639.6, "2640"), (100.0, "100"), (13.04, "13.0"), (3.8, "3.80"), (0.05, "0.05")]
)
def test_rates(value: float | None, text: str) -> None:
    assert rate(value) == text
