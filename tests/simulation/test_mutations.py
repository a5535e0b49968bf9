"""The simulation can fail: each of these breaks one rule of the protocol on purpose, and some schedule reports it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation import model
from tests.simulation.schedule import run

from asteroid_agent.worker.keeper import Keeper
from asteroid_agent.worker.mailbox import Expectations
from asteroid_agent.worker.runner import StageRunner
from asteroid_coordinator.job import decide
from asteroid_core.schedule import Op
from asteroid_core.wire.inbox import Inbox

SEEDS = 120


def _caught(sentence: str, seeds: int = SEEDS) -> int:
    """The first seed whose run is reported with these words."""
    for seed in range(seeds):
        outcome = run(seed)
        if any(sentence in text for text in outcome.violations):
            return seed
    pytest.fail(f"{seeds} schedules, and nothing was reported")


def test_who_does_not_wait_for_votes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Expectations.parts

    def nobody(self: Expectations, op: Op, number: int | None, rows: int) -> Any:
        return () if op is Op.RECV_VOTES else parts(self, op, number, rows)

    monkeypatch.setattr(Expectations, "parts", nobody)
    monkeypatch.setattr("asteroid_agent.worker.runner.clip_scale", lambda *_: 1.0)
    _caught("did not hold the reduced gradients")


def test_who_takes_tensors_of_older_generations_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    on_chunk = Inbox.on_chunk

    def any_generation(self: Inbox, src: str, stage: str, generation: int, *rest: Any) -> Any:
        mine = self.generation
        if mine is None or generation >= mine:
            return on_chunk(self, src, stage, generation, *rest)
        self.generation = generation
        try:
            return on_chunk(self, src, stage, generation, *rest)
        finally:
            self.generation = mine

    monkeypatch.setattr(Inbox, "on_chunk", any_generation)
    _caught("of generation")


def test_who_does_not_take_an_open_round_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.NumpyBackend, "rollback", lambda self: None)
    _caught("is off by")


def test_who_does_not_take_the_step_that_others_have_taken_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    catch_up = StageRunner.catch_up

    def lazy(self: StageRunner, start: int, scale: float | None) -> None:
        if start == self.rounds:
            catch_up(self, start, scale)
        self.rounds = start

    monkeypatch.setattr(StageRunner, "catch_up", lazy)
    _caught("is off by")


def test_who_calls_a_round_durable_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "secured", lambda *_: True)
    _caught("is called durable, but layer")


def test_who_forgets_snapshots_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "settle", lambda self, generation, rounds: self.only(()))
    _caught("")  # some device looks for them in vain, or a round is not kept
