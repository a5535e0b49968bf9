"""Data sets of every kind: what they give, and the sentence when they cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asteroid_core.data import open_source
from asteroid_core.data.feeder import FeedPlan, Split
from asteroid_core.data.source import IGNORED
from asteroid_core.errors import InputError
from asteroid_core.rounds import RoundPlan
from asteroid_core.spec import DataSpec

ROWS = np.arange(3)


def _open(source: object, **options: object) -> object:
    return open_source(DataSpec.model_validate({"source": str(source), "options": options}))


def test_digits() -> None:
    source = open_source(DataSpec(source="digits", options={"size": 16, "channels": 3}), dtype="float64")
    (images,), targets = source.batch(ROWS)
    assert images.shape == (3, 3, 16, 16)
    assert images.dtype == np.float64
    assert targets.tolist() == [0, 1, 2]
    assert (len(source), source.classes) == (1797, 10)


def test_arrays_are_mapped_not_read(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((10, 4)).astype(np.float32), np.arange(10)
    np.savez(tmp_path / "set.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    for name in ("set.npz", "x.npy"):
        source = open_source(DataSpec(source=str(tmp_path / name)))
        (rows,), targets = source.batch(np.array([9, 0]))
        assert np.array_equal(rows, x[[9, 0]])
        assert targets.tolist() == [9, 0]


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for name, shade in (("cat", 0), ("dog", 255)):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (9, 7), (shade, shade, shade)).save(tmp_path / name / f"{i}.png")
    source = open_source(DataSpec(source=str(tmp_path), options={"size": 8}))
    (images,), targets = source.batch(np.arange(4))
    assert images.shape == (4, 3, 8, 8)
    assert targets.tolist() == [0, 0, 1, 1]
    assert images[0].max() < images[3].min()
    assert source.classes == 2


def test_text_for_language_models(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(65, 91)) * 4)
    following = open_source(DataSpec(source=str(path), options={"task": "next-byte", "length": 8}))
    (tokens,), targets = following.batch(np.array([0]))
    assert np.array_equal(tokens[0][1:], targets[0][:-1])
    masked = open_source(DataSpec(source=str(path), options={"task": "masked-bytes", "length": 16}), seed=3)
    (tokens,), targets = masked.batch(ROWS, np.zeros(3, np.int64))
    hidden = targets != IGNORED
    assert hidden.any()
    assert (tokens[hidden] == 256).all()
    again = masked.batch(ROWS, np.zeros(3, np.int64))
    assert np.array_equal(again[1], targets)
    assert not np.array_equal(masked.batch(ROWS, np.ones(3, np.int64))[1], targets)
    assert masked.count(ROWS, np.zeros(3, np.int64)) == hidden.sum()


def test_a_data_set_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_test.py").write_text(
        "import numpy\ndef data(n=4):\n    return [(numpy.array([i, 1.0]), i % 2) for i in range(n)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = open_source(DataSpec(source="mine_for_test:data", options={"n": 6}))
    (rows,), targets = source.batch(np.array([5]))
    assert (len(source), targets.tolist()) == (6, [1])
    assert rows.dtype == np.float32


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("/no/such/place", {}, "There is no data"),
        ("digits", {"sise": 3}, "not an option"),
        ("digits", {"size": "big"}, "data.options.size"),
        ("no_such_module_x:data", {}, "no_such_module_x"),
        ("os:nothing", {}, "nothing"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(source: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        _open(source, **options)
    assert caught.value.remedy


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        _open(tmp_path / "x.npy")


def test_splits_are_disjoint_and_drawn_from_the_seed() -> None:
    split = Split.of(100, 0.25, 1)
    assert sorted([*split.training, *split.validation]) == list(range(100))
    assert len(split.validation) == 25
    assert np.array_equal(split.validation, Split.of(100, 0.25, 1).validation)
    assert not np.array_equal(split.validation, Split.of(100, 0.25, 2).validation)


def test_losses_are_divided_by_what_counts_in_the_whole_mini_batch() -> None:
    source = open_source(DataSpec(source="digits"))
    split = Split.of(len(source), 0.1, 0)
    feed = FeedPlan(RoundPlan(len(split.training), 12, 4, 1, 0), source, split)
    parts = [feed.micro_batch(0, 3, micro) for micro in range(3)]
    assert {p.normaliser for p in parts} == {12.0}
    assert len({int(i) for p in parts for i in p.indices}) == 12
    assert feed.micro_batch(1, 0, 0).normaliser == len(split.validation)
