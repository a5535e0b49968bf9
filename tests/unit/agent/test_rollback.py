"""The torch backend between rounds: taking a round back, a state that is not copied, missing optimizer state."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from tests.support import jobs

from asteroid_agent.backend.base import Arrays, SampleKeys
from asteroid_agent.backend.torch_backend import TorchBackend
from asteroid_coordinator.importing import Imports
from asteroid_core.errors import ProgramError
from asteroid_core.program import StageProgram
from asteroid_core.randomness import example_inputs, example_targets
from asteroid_core.spec import OptimizerSpec
from asteroid_core.wire.safe import pack, unpack

ROWS = 4
SGD = OptimizerSpec(kind="sgd", lr=0.05, momentum=0.9)
PLAIN = OptimizerSpec(kind="sgd", lr=0.05, momentum=0.0)
ADAMW = OptimizerSpec(kind="adamw", lr=0.01)


@lru_cache
def _imports() -> Imports:
    """Convolutions with batch norm."""
    return jobs.imported(jobs.job("cnn"))


@lru_cache
def _program() -> StageProgram:
    imports = _imports()
    return imports.model.stage(0, len(imports.model.layers))


def _backend(optimizer: OptimizerSpec = SGD, state: Arrays | None = None) -> TorchBackend:
    return TorchBackend(_program(), state or _imports().model.all_state(), optimizer)


def _micro(backend: TorchBackend, micro: int = 0) -> float:
    """Forward and backward of a micro-batch."""
    samples = SampleKeys(0, np.zeros(ROWS, np.int64), np.arange(ROWS))
    inputs, target = example_inputs(_program(), ROWS), example_targets(_program(), ROWS)
    scores = backend.forward_loss(micro, inputs, target, float(ROWS), train=True, samples=samples)
    backend.backward(micro, None)
    return scores.loss


def _round(backend: TorchBackend) -> float:
    backend.begin_round()
    loss = _micro(backend)
    backend.step(0.05, 1.0)
    return loss


def _picture(backend: TorchBackend) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in backend.state().items()}


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


MUTABLE = {"statistic", "counter"}


def _mutable() -> set[str]:
    return {t.name for t in _program().tensors if t.role in MUTABLE}


# Rollback


def test_the_model_has_both_statistics_and_counters() -> None:
    assert {t.role for t in _program().tensors} >= MUTABLE


def test_a_round_before_its_step_changes_nothing_but_statistics_and_rollback_puts_them_back() -> None:
    backend = _backend()
    _round(backend)
    before = _picture(backend)
    backend.begin_round()
    _micro(backend)
    _micro(backend, 1)
    assert _changed(before, _picture(backend)) == _mutable()
    backend.rollback()
    assert _changed(before, _picture(backend)) == set()


def test_a_rollback_reaches_the_begin_of_the_last_round_only() -> None:
    backend = _backend()
    first = _picture(backend)
    _round(backend)
    begin = _picture(backend)
    backend.begin_round()
    _micro(backend)
    backend.rollback()
    backend.rollback()
    assert _changed(begin, _picture(backend)) == set()
    assert _changed(first, _picture(backend)) >= _mutable()


def test_statistics_that_a_group_has_averaged_already_are_put_back_too() -> None:
    backend = _backend()
    before = _picture(backend)
    backend.begin_round()
    _micro(backend)
    backend.set_statistics(backend.statistics() * 0.5)
    backend.rollback()
    assert _changed(before, _picture(backend)) == set()


def test_a_backend_that_has_not_begun_has_nothing_to_take_back() -> None:
    backend = _backend()
    before = _picture(backend)
    backend.rollback()
    assert _changed(before, _picture(backend)) == set()


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_round_that_was_taken_back_runs_again_as_if_for_the_first_time(optimizer: OptimizerSpec) -> None:
    straight, interrupted = _backend(optimizer), _backend(optimizer)
    for backend in (straight, interrupted):
        _round(backend)
    interrupted.begin_round()
    _micro(interrupted)
    _micro(interrupted, 1)
    interrupted.rollback()
    assert [_round(straight), _round(straight)] == [_round(interrupted), _round(interrupted)]
    assert _changed(_picture(straight), _picture(interrupted)) == set()


# State


def test_the_state_is_a_view_that_training_changes_and_a_packed_one_is_not() -> None:
    backend = _backend()
    _round(backend)
    state = backend.state()
    packed = pack(state)
    names = [t.name for t in _program().params]
    slots = [f"opt/{name}/momentum_buffer" for name in names]
    again = backend.state()
    assert all(np.shares_memory(state[name], again[name]) for name in [*names, *slots, *_mutable()])
    before = _picture(backend)
    _round(backend)
    kept = unpack(packed)
    assert {name: array.tobytes() for name, array in kept.items()} == before
    assert all(state[name].tobytes() != before[name] for name in [*names, *slots])
    assert kept["opt/step"] == 1
    assert backend.state()["opt/step"] == 2


@pytest.mark.parametrize("optimizer", [SGD, PLAIN, ADAMW], ids=["momentum", "plain", "adamw"])
def test_a_backend_that_is_loaded_from_a_snapshot_trains_on_to_the_bit(optimizer: OptimizerSpec) -> None:
    straight = _backend(optimizer)
    _round(straight)
    loaded = _backend(optimizer, unpack(pack(straight.state())))
    assert _changed(_picture(straight), _picture(loaded)) == set()
    assert _round(straight) == _round(loaded)
    assert _changed(_picture(straight), _picture(loaded)) == set()


def test_a_loaded_backend_leaves_the_snapshot_alone() -> None:
    first = _backend()
    _round(first)
    packed = pack(first.state())
    before = bytes(packed)
    _round(_backend(state=unpack(packed)))
    assert bytes(packed) == before


# Optimizer state


@pytest.mark.parametrize(
    ("optimizer", "slot"),
    [(SGD, "momentum_buffer"), (ADAMW, "exp_avg"), (ADAMW, "exp_avg_sq")],
)
def test_missing_optimizer_state_is_refused_by_name(optimizer: OptimizerSpec, slot: str) -> None:
    backend = _backend(optimizer)
    _round(backend)
    name = _program().params[1].name
    state = dict(backend.state())
    del state[f"opt/{name}/{slot}"]
    with pytest.raises(ProgramError, match="after 1 steps") as caught:
        _backend(optimizer, state)
    assert f"no {slot} of {name}" in caught.value.what


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_before_the_first_step_there_need_be_none(optimizer: OptimizerSpec) -> None:
    state = _backend(optimizer).state()
    assert [name for name in state if name.startswith("opt/")] == ["opt/step"]
    assert _round(_backend(optimizer, state)) == _round(_backend(optimizer))


def test_an_optimizer_without_memory_needs_none() -> None:
    backend = _backend(PLAIN)
    _round(backend)
    state = {name: array for name, array in backend.state().items() if name.count("/") < 2}
    assert _backend(PLAIN, state).state()["opt/step"] == 1
