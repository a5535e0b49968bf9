"""The Gantt chart as people see it: compared with what somebody has looked at."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from asteroid_coordinator.cli.gantt import gantt_svg, gantt_text
from asteroid_coordinator.simulator.engine import simulate
from asteroid_core.costs import Costs, DeviceCost, Network
from asteroid_core.plan import Plan, Share, Stage

GOLDEN = Path(__file__).parent / "golden"
PLAN = Plan(
    generation=1,
    stages=(
        Stage(lo=0, hi=2, shares=(Share(device="jetson", samples=8),), warm_up=3),
        Stage(lo=2, hi=5, shares=(Share(device="pi-4", samples=3), Share(device="pi-5", samples=5)), warm_up=1),
    ),
    micro_size=8,
    micro_count=4,
)
COSTS = Costs(
    devices=tuple(
        DeviceCost(device=d, forward_s=0.01, backward_s=0.02, step_s=0.005, bytes_per_s=1e6) for d in PLAN.devices
    ),
    activation_bytes=(1000,),
    gradient_bytes=(1000,),
    reduce_bytes=(2000, 3000),
    network=Network(direct=True),
)


@pytest.mark.parametrize("width", [60, 100])
def test_for_a_terminal(width: int) -> None:
    shown = gantt_text(PLAN, simulate(PLAN, COSTS), width).plain
    assert shown + "\n" == (GOLDEN / f"gantt-{width}.txt").read_text()


@pytest.mark.parametrize("width", [30, 45, 80, 200])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    rows = gantt_text(PLAN, simulate(PLAN, COSTS), width).plain.splitlines()
    assert max(cell_len(row) for row in rows[:-1]) <= max(width, 10 + len("jetson") + 15)


def test_as_a_picture() -> None:
    root = ElementTree.fromstring(gantt_svg(PLAN, simulate(PLAN, COSTS)))
    space = "{http://www.w3.org/2000/svg}"
    texts = [e.text or "" for e in root.iter(f"{space}text")]
    assert [t for t in texts if t.startswith(("0 ", "1 "))] == ["0 jetson", "1 pi-4", "1 pi-5"]
    titles = [e.text or "" for e in root.iter(f"{space}title")]
    assert sum(t.startswith("0F") for t in titles) == PLAN.micro_count
    assert sum(t.startswith("1B") for t in titles) == 2 * PLAN.micro_count
    wide = float(root.attrib["width"])
    for box in root.iter(f"{space}rect"):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= wide


def test_names_do_not_break_the_picture() -> None:
    stage = Stage(lo=0, hi=1, shares=(Share(device="<a&b>", samples=1),), warm_up=1)
    plan = Plan(generation=1, stages=(stage,), micro_size=1, micro_count=1)
    costs = Costs(devices=(DeviceCost(device="<a&b>", forward_s=1.0, backward_s=1.0),), reduce_bytes=(0,))
    root = ElementTree.fromstring(gantt_svg(plan, simulate(plan, costs)))
    assert any(e.text == "0 <a&b>" for e in root.iter())
