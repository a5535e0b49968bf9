"""What the coordinator keeps survives: jobs and events in SQLite, checkpoints and models in safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from asteroid_coordinator.checkpoint import Checkpoints, save_model
from asteroid_coordinator.store import Store
from asteroid_core.errors import AsteroidError, InputError

TENSORS: dict[str, npt.NDArray[np.generic]] = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.count": np.array(7, np.int64),
    "opt/layer.weight/momentum_buffer": np.ones((2, 3), np.float64),
    "opt/step": np.array(3, np.int64),
}


def test_jobs_events_and_states_are_there_after_a_restart(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create_job("a", '{"x": 1}')
        assert [store.append("a", {"text": str(i)}) for i in range(3)] == [1, 2, 3]
        store.set_snapshot("a", '{"job": "a", "phase": "running"}')
        store.put_profile("pi", "m", "torch", "times")
    with Store(tmp_path) as store:
        assert store.jobs() == ["a"]
        assert store.spec("a") == '{"x": 1}'
        assert [e.seq for e in store.events("a", after=1)] == [2, 3]
        assert store.states() == [{"job": "a", "phase": "running"}]
        assert store.get_profile("pi", "m", "torch") == "times"
        assert store.get_profile("pi", "m", "other torch") is None
        assert store.append("a", {"text": "on"}) == 4


def test_names_are_never_used_twice(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create_job("digits", "{}")
        assert store.free_name("digits") == "digits-2"
        store.create_job("digits-2", "{}")
        assert store.free_name("digits") == "digits-3"
        assert len(store.free_name("x" * 63)) <= 63
        with pytest.raises(InputError, match="already"):
            store.create_job("digits", "{}")


def test_two_coordinators_do_not_share_a_directory_but_anyone_may_look(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create_job("a", "{}")
        with pytest.raises(InputError, match="Another coordinator"):
            Store(tmp_path)
        with Store(tmp_path, read_only=True) as looking:
            assert looking.jobs() == ["a"]
    Store(tmp_path).close()


def test_unknown_jobs_and_damaged_stores_get_sentences(tmp_path: Path) -> None:
    with Store(tmp_path / "good") as store, pytest.raises(InputError, match="no job 'x'"):
        store.spec("x")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "asteroid.sqlite3").write_bytes(b"not a database, not even a short one" * 100)
    with pytest.raises(InputError, match="damaged"):
        Store(bad)
    with pytest.raises(InputError, match="no store"):
        Store(tmp_path / "none", read_only=True)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(5, TENSORS, {"generation": 2})
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    assert (latest.rounds, latest.manifest.meta["generation"]) == (5, 2)
    read = checkpoints.read(latest)
    assert read.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert read[name].shape == value.shape
        assert np.array_equal(read[name], value)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for rounds in (1, 2, 3, 3, 4):
        checkpoints.write(rounds, TENSORS)
    assert [c.rounds for c in checkpoints.all()] == [4, 3]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(damage: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for rounds in (1, 2):
        checkpoints.write(rounds, TENSORS)
    newest = checkpoints.all()[0].path
    file = newest / "model.safetensors"
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "remove":
        file.unlink()
    else:
        (newest / "manifest.json").write_text("{}")
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.rounds == 1
    assert newest in checkpoints.damaged


def test_what_a_crash_left_half_written_is_not_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(1, TENSORS)
    half = next(p for p in checkpoints.directory.iterdir() if p.name == "round-000001")
    half.rename(half.with_name(".partial-round-000002"))
    assert checkpoints.latest() is None or checkpoints.latest().rounds == 1  # type: ignore[union-attr]
    checkpoints.write(3, TENSORS)
    assert [c.rounds for c in checkpoints.all()] == [3]


def test_a_model_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    save_model({"w": np.zeros(3, np.float32)}, path)
    save_model({"w": np.ones(3, np.float32)}, path)
    assert load_file(path)["w"].tolist() == [1, 1, 1]
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]
    with pytest.raises(AsteroidError):
        save_model({"w": np.array(["text"])}, path)
