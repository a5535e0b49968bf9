"""The emulated cluster does what it says: rates, quotas, cut cables, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.testbed.cluster import BROKER, COORDINATOR, DeviceSpec, Testbed, remove_leftovers, unavailable
from tests.testbed.network import namespaces
from tests.testbed.quota import groups

WHY = unavailable()
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")

SINK = """
import socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as server:
    peer, _ = server.accept()
    total, begin = 0, 0.0
    while piece := peer.recv(1 << 16):
        begin = begin or time.monotonic()
        total += len(piece)
    print(total / (time.monotonic() - begin) * 8 / 1e6, flush=True)
"""
SOURCE = """
import socket, sys, time
deadline = time.monotonic() + 10
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 5000), 1)
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.02)
peer.settimeout(30)
peer.sendall(bytes(int(sys.argv[2])))
peer.close()
"""


@pytest.fixture
def bed() -> Iterator[Testbed]:
    devices = [DeviceSpec("slow", mbit=20, cpu=0.2), DeviceSpec("fast", mbit=200, cpu=0.5)]
    with Testbed(devices, broker_mbit=1000) as made:
        yield made


def _goodput(bed: Testbed, source: str, target: str, size: int) -> float:
    """Mbit/s of a TCP stream."""
    address = bed.hosts[target].address
    sink = bed.popen(target, [sys.executable, "-c", SINK, address], "sink")
    assert bed.run(source, [sys.executable, "-c", SOURCE, address, str(size)]).returncode == 0
    assert sink.wait(30) == 0
    text = bed.log("sink").read_text()
    bed.log("sink").unlink()
    return float(text)


@pytest.mark.parametrize(("device", "mbit", "size"), [("slow", 20, 5_000_000), ("fast", 200, 40_000_000)])
def test_a_link_has_its_rate_in_either_direction(bed: Testbed, device: str, mbit: float, size: int) -> None:
    assert 0.85 * mbit < _goodput(bed, device, BROKER, size) < 1.02 * mbit
    assert 0.85 * mbit < _goodput(bed, BROKER, device, size) < 1.02 * mbit


def test_a_rate_can_be_changed(bed: Testbed) -> None:
    bed.network.set_rate("fast", 50)
    assert 40 < _goodput(bed, "fast", BROKER, 10_000_000) < 51
    bed.network.set_rate("fast", None)
    assert _goodput(bed, "fast", BROKER, 40_000_000) > 200


def test_a_device_gets_its_part_of_a_processor(bed: Testbed) -> None:
    burn = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    used = {name: float(bed.run(name, [sys.executable, "-c", burn]).stdout) / 1.5 for name in ("slow", "fast")}
    assert 0.1 < used["slow"] < 0.3
    assert 0.25 < used["fast"] < 0.6
    assert used["slow"] < used["fast"]


def test_a_cable_can_be_cut_and_mended(bed: Testbed) -> None:
    connect = (
        "import socket; s = socket.socket(); s.settimeout(1)\n"
        f"try: s.connect(('{bed.hosts[BROKER].address}', 9)); print('open')\n"
        "except ConnectionRefusedError: print('there')\n"
        "except OSError: print('cut')"
    )
    program = [sys.executable, "-c", connect]
    assert bed.run("slow", program).stdout.strip() == "there"
    bed.cut("slow")
    assert bed.run("slow", program).stdout.strip() == "cut"
    assert bed.run("fast", program).stdout.strip() == "there"
    bed.mend("slow")
    deadline = time.monotonic() + 10
    while bed.run("slow", program).stdout.strip() != "there":
        assert time.monotonic() < deadline


def test_nothing_is_left_after_an_exception_and_two_live_side_by_side() -> None:
    made: list[Testbed] = []

    def fail() -> None:
        with Testbed([DeviceSpec("one", cpu=0.5)]) as bed:
            made.append(bed)
            bed.popen("one", [sys.executable, "-c", "import time; time.sleep(60)"])
            bed.popen(COORDINATOR, ["sh", "-c", "sleep 60 & wait"])
            raise RuntimeError("on purpose")

    with Testbed([DeviceSpec("one", cpu=0.5)]) as other:
        with pytest.raises(RuntimeError, match="on purpose"):
            fail()
        (bed,) = made
        assert not [name for name in namespaces() if name.startswith(bed.prefix)]
        assert not groups(bed.prefix)
        assert not bed.directory.exists()
        assert other.run("one", ["true"]).returncode == 0


def test_what_a_killed_process_left_behind_is_removed_and_nobody_elses(tmp_path: Path) -> None:
    script = (
        "from tests.testbed.cluster import *\nimport sys, time\n"
        "bed = Testbed([DeviceSpec('one', cpu=0.5)]).__enter__()\n"
        "bed.popen('one', ['sleep', '60'])\nprint(bed.prefix, bed.directory, flush=True)\ntime.sleep(60)"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    prefix, directory = maker.stdout.readline().split()
    with Testbed([DeviceSpec("one", cpu=0.5)]) as mine:
        maker.kill()
        maker.wait()
        maker.stdout.close()
        removed = remove_leftovers()
        assert {f"{prefix}switch", f"{prefix}one"} <= set(removed)
        assert not [name for name in (*namespaces(), *(g.name for g in groups(prefix))) if name.startswith(prefix)]
        assert mine.run("one", ["true"]).returncode == 0
    for file in Path(directory).iterdir():
        file.unlink()
    Path(directory).rmdir()


def test_sigterm_tears_down() -> None:
    script = (
        "from tests.testbed.cluster import *\nimport time\n"
        "with Testbed([DeviceSpec('one', cpu=0.5)]) as bed:\n    print(bed.prefix, flush=True)\n    time.sleep(60)"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    prefix = maker.stdout.readline().strip()
    maker.send_signal(signal.SIGTERM)
    assert maker.wait(20) == 128 + signal.SIGTERM
    maker.stdout.close()
    assert not [name for name in namespaces() if name.startswith(prefix)]
    assert not groups(prefix)


def test_two_agents_train_across_their_links(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        '[model]\nname = "mlp"\n[data]\nsource = "digits"\n[train]\nrounds = 6\nbatch = 32\n'
        "[plan]\nstages = 2\nall_devices = true\n"
    )
    devices = [DeviceSpec("pi-a", mbit=100), DeviceSpec("pi-b", mbit=50)]
    with Testbed(devices, broker_mbit=100) as bed:
        bed.start_broker()
        for device in bed.devices:
            bed.start_agent(device)
        done = bed.run(COORDINATOR, bed.cli("train", str(job), "--json"), timeout=120)
        assert done.returncode == 0, done.stderr + "".join(bed.log(name).read_text() for name in bed.devices)
        result = json.loads(done.stdout)
        assert result["completed"] == 6
        assert "pi-a" in result["plan"]
        assert "pi-b" in result["plan"]
        plan = json.loads(bed.run(COORDINATOR, bed.cli("plan", str(job), "--json"), timeout=120).stdout)
        speeds = {cost["device"]: cost["bytes_per_s"] for cost in plan["costs"]["devices"]}
        assert 0.8 * 100e6 / 8 < speeds["pi-a"] < 1.05 * 100e6 / 8
        assert 0.8 * 50e6 / 8 < speeds["pi-b"] < 1.05 * 50e6 / 8
