"""Devices as a fold of their messages, and the figures of a round."""

from __future__ import annotations

import pytest
from tests.unit.coordinator.test_job import plan

from asteroid_coordinator.cluster.commands import AGAIN_S, TRIES, Commands
from asteroid_coordinator.cluster.registry import Found, Lost, Registry
from asteroid_coordinator.scoreboard import Scoreboard
from asteroid_core.wire.messages import AgentInfo, AgentStatus, Command, Report

INFO = AgentInfo(agent="a", cores=1, memory_mb=1000, budget_mb=500)


def _status(state: str, connection: str = "c1", protocol: int = 1) -> AgentStatus:
    raw = {"agent": "a", "state": state, "connection": connection, "protocol": protocol, "reason": "why"}
    return AgentStatus.model_validate(raw)


def test_a_device_is_found_once_its_birth_and_hardware_are_known() -> None:
    registry = Registry()
    assert registry.status(_status("ready")) is None
    assert registry.info(INFO) == Found("a")
    assert registry.status(_status("training")) is None
    assert registry.status(_status("lost")) == Lost("a", "why")


@pytest.mark.parametrize("state", ["lost"])
def test_the_late_will_of_an_older_connection_is_not_believed(state: str) -> None:
    registry = Registry()
    registry.info(INFO)
    registry.status(_status("ready", "new"))
    assert registry.status(_status(state, "old")) is None
    assert [d.name for d in registry.present()] == ["a"]


def test_a_device_of_another_protocol_is_not_present_and_named() -> None:
    registry = Registry()
    registry.info(INFO)
    assert registry.status(_status("ready", protocol=99)) is None
    assert not registry.present()
    assert "a speaks protocol 99" in registry.foreign()[0]


def _report(agent: str, **more: object) -> Report:
    raw = {"agent": agent, "job": "j", "generation": 1, "kind": "round", "round": 0, "seconds": 2.0, "busy_s": 1.0}
    return Report.model_validate({**raw, **more})


def test_a_round_has_figures_once_all_have_spoken() -> None:
    board = Scoreboard("j", 10, plan(1, "a", "b"))
    assert board.add(_report("a")) is None
    metrics = board.add(_report("b", loss=0.5, correct=3, counted=4, seconds=4.0))
    assert metrics is not None
    assert (metrics.loss, metrics.accuracy, metrics.seconds) == (0.5, 0.75, 4.0)
    assert metrics.samples_per_s == 1.0
    assert metrics.busy == {"a": 0.5, "b": 0.25}
    assert metrics.eta_s == 9 * 4.0


def test_reports_of_strangers_and_older_generations_do_not_count() -> None:
    board = Scoreboard("j", 10, plan(1, "a"))
    assert board.add(_report("x")) is None
    assert board.add(_report("a", generation=0)) is None
    assert board.add(_report("a")) is not None


def test_a_command_without_an_answer_is_said_again_a_few_times() -> None:
    commands, command = Commands(), Command(id="1", verb="stop", job="j")
    commands.sent("a", command, 0.0)
    commands.sent("b", command, 0.0)
    commands.answered("b", "1")
    assert commands.due(AGAIN_S / 2) == []
    said = 1
    for turn in range(1, 20):
        said += len(commands.due(turn * AGAIN_S))
    assert said == TRIES
    commands.sent("a", command, 0.0)
    commands.lost("a")
    assert commands.due(1000.0) == []
