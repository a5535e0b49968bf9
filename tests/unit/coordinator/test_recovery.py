"""The phases of a recovery add up to the time that passed, whatever else happens meanwhile."""

from __future__ import annotations

import pytest
from tests.unit.coordinator.test_job import plan

from asteroid_coordinator.job import state as s
from asteroid_coordinator.recovery import Recovered, Recoveries
from asteroid_coordinator.stock import StatePart
from asteroid_core.wire.messages import JobPhase, Loading

MOVES = ({"from": "c", "to": "a", "lo": 1, "hi": 2},)


def job(phase: JobPhase, generation: int = 1, completed: int = 8, heavy: bool = False) -> s.Job:
    return s.Job("j", phase=phase, generation=generation, completed=completed, plan=plan(1, "a", "b"), heavy=heavy)


def ready(agent: str, loading: Loading, generation: int = 2) -> s.WorkerMoved:
    return s.WorkerMoved(agent, "ready", generation, loading=loading)


def recovered(recoveries: Recoveries, heavy: bool = False) -> Recovered:
    """Two rounds are run again after a stage was lost: one second, then a tenth, and so on."""
    assert recoveries.passed(job("running"), 0.0) is None
    recoveries.said("device-lost", {"device": "b"}, 10.0)
    assert recoveries.passed(job("planning"), 11.0) is None
    recoveries.said("planned", {}, 11.0)
    recoveries.said("replay", {"round": 6, "again": 2, "moves": MOVES}, 11.0)
    assert recoveries.passed(job("preparing", 2, 6), 11.2) is None
    if heavy:
        recoveries.heard(StatePart("a", 2, 6, memoryview(bytes(500)), answer=True), 11.3)
    recoveries.heard(ready("a", Loading(fetched_bytes=2000, fetch_s=0.5, load_s=0.1)), 12.0)
    recoveries.heard(ready("c", Loading(fetched_bytes=10, fetch_s=0.1, load_s=0.2)), 12.1)
    recoveries.heard(ready("c", Loading(fetched_bytes=99), generation=1), 12.1)
    recoveries.said("running", {}, 12.2)
    assert recoveries.passed(job("running", 2, 6, heavy), 12.2) is None
    assert recoveries.passed(job("running", 2, 7, heavy), 13.0) is None
    over = recoveries.passed(job("running", 2, 8, heavy), 15.0)
    assert over is not None
    assert recoveries.passed(job("running", 2, 9, heavy), 16.0) is None
    return over


def test_phases_of_a_lost_stage() -> None:
    over = recovered(Recoveries())
    assert (over.devices, over.way, over.round, over.again, over.moves) == (("b",), "replay", 6, 2, MOVES)
    phases = (over.halt_s, over.plan_s, over.build_s, over.move_s, over.restore_s, over.again_s)
    assert phases == pytest.approx((0.0, 1.0, 0.2, 0.5, 0.5, 2.8))
    assert over.resumed_s == pytest.approx(2.2)
    assert over.total_s == pytest.approx(5.0)
    assert over.moved_bytes == 2010
    assert over.text == (
        "recovered from the loss of b in 5.0 s: planned in 1.2 s, 0.0 MB moved in 0.50 s, restored in 0.50 s, "
        "2 rounds run again in 2.8 s"
    )
    assert over.data()["workers"]["a"] == {"fetched_bytes": 2000, "fetch_s": 0.5, "load_s": 0.1}


def test_what_goes_through_the_coordinator_counts_both_ways() -> None:
    over = recovered(Recoveries(), heavy=True)
    assert (over.way, over.moved_bytes) == ("heavy", 2510)


def test_a_lost_member_of_a_group_halts_and_moves_nothing() -> None:
    recoveries = Recoveries()
    recoveries.passed(job("running"), 0.0)
    recoveries.said("device-lost", {"device": "b"}, 1.0)
    recoveries.passed(job("halting"), 1.1)
    recoveries.heard(s.Halted("a", 1, 8), 1.5)
    recoveries.said("planned", {}, 1.75)
    recoveries.said("regroup", {"round": 8}, 1.75)
    recoveries.passed(job("preparing", 2), 1.8)
    recoveries.heard(ready("a", Loading()), 1.9)
    recoveries.said("running", {}, 2.0)
    over = recoveries.passed(job("running", 2), 2.0)
    assert over is not None
    assert (over.way, over.again, over.again_s, over.moved_bytes) == ("regroup", 0, 0.0, 0)
    assert (over.halt_s, over.plan_s, over.total_s) == pytest.approx((0.5, 0.25, 1.0))
    assert over.text.endswith("stopped in 0.50 s, planned in 0.30 s, no weights moved, restored in 0.20 s")


def test_another_loss_meanwhile_belongs_to_the_same_recovery() -> None:
    recoveries = Recoveries()
    recoveries.passed(job("running"), 0.0)
    recoveries.said("device-lost", {"device": "d"}, 5.0)
    recoveries.said("planned", {}, 6.0)
    recoveries.passed(job("preparing", 2, 6), 6.5)
    over = recovered(recoveries)
    assert over.devices == ("d", "b")
    assert over.total_s == pytest.approx(10.0)
    assert over.plan_s == pytest.approx(6.0)


def test_losses_before_there_is_a_plan_and_after_the_end_are_none() -> None:
    recoveries = Recoveries()
    recoveries.passed(s.Job("j", phase="profiling"), 0.0)
    recoveries.said("device-lost", {"device": "b"}, 1.0)
    recoveries.said("running", {}, 2.0)
    assert recoveries.passed(job("running"), 2.0) is None
    recoveries.said("device-lost", {"device": "b"}, 3.0)
    assert recoveries.passed(job("failed"), 3.0) is None
    recoveries.said("running", {}, 4.0)
    assert recoveries.passed(job("running"), 4.0) is None
