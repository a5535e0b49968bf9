"""Layer times under a quota are steady, and a layer is not charged for having been run apart."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.support import jobs

from asteroid_agent.worker.measure import Bundle, measure, stretch_of, taken, without_overhead
from asteroid_coordinator.profiling import cheapest_run
from asteroid_core.errors import ProgramError
from asteroid_core.profile import LayerInfo, LayerTimes


class _Steps:
    """A clock that goes on by the next of some steps, in turn, whenever it is read."""

    def __init__(self, *steps: float) -> None:
        self._steps, self._count, self.time = steps, 0, 0.0

    def now(self) -> float:
        self.time += self._steps[self._count % len(self._steps)]
        self._count += 1
        return self.time


def _bundle() -> Bundle:
    imports = jobs.imported(jobs.job("mlp"))
    programs = tuple(imports.model.stage(i, i + 1).shape_only() for i in range(len(imports.model.layers)))
    return Bundle(programs, tuple(range(len(programs))), (1, 2), imports.spec.optimizer)


def test_a_throttled_window_does_not_make_its_layer_slow() -> None:
    told: list[tuple[int, int]] = []
    # Every seventh reading, the device has been kept from computing for 60 ms; a layer always takes 1 ms of processor.
    wall, cpu = _Steps(*([0.001] * 6), 0.061), _Steps(0.001)
    measured = measure(_bundle(), 1, wall, cpu, lambda done, total: told.append((done, total)))
    assert measured.stretch == pytest.approx(67 / 7, rel=0.05)
    expected = [0.001 * measured.stretch] * 2
    for times in measured.layers:
        assert times.forward_s == pytest.approx(expected)
        assert times.backward_s == pytest.approx(expected)
        assert times.step_s == pytest.approx(expected[0])
        assert times.activation_bytes is not None
    assert told[-1] == (len(told), len(told))


def test_where_threads_compute_side_by_side_the_wall_clock_counts() -> None:
    measured = measure(_bundle(), 2, _Steps(0.001), _Steps(0.002), lambda done, total: None)
    assert measured.stretch == pytest.approx(0.5)
    assert measured.layers[0].forward_s == pytest.approx((0.001, 0.001))
    assert taken(np.array([3.0, 5.0]), stretch_of(np.array([3.0, 5.0]))) == 3.0
    assert taken(np.array([9.0, 2.0]), 4.0) == 8.0


def _times(forward: float, backward: float) -> LayerTimes:
    return LayerTimes(batches=(1, 2), forward_s=(forward, 2 * forward), backward_s=(backward, backward))


def test_what_running_apart_costs_is_taken_from_every_layer() -> None:
    layers = [_times(1.0, 3.0)] * 3 + [_times(0.25, 9.0)]
    # layers 0 to 2 apart take 3 and 9 (6 and 9 for two samples); together 2.4 and 10 (5 and 7)
    whole = LayerTimes(batches=(1, 2), forward_s=(2.4, 5.0), backward_s=(10.0, 7.0))
    less = without_overhead(layers, whole, 0, 3)
    assert less[0].forward_s == pytest.approx((0.7, 1.5))
    assert less[0].backward_s == pytest.approx((3.0, 2.0))
    # what is left of a small layer is never nothing
    assert less[3].forward_s == pytest.approx((0.05, 0.1))
    assert less[3].backward_s == pytest.approx((9.0, 8.0))


def test_the_run_that_is_measured_is_the_one_that_needs_the_least_memory() -> None:
    def layer(parameters: int, activations: int) -> LayerInfo:
        return LayerInfo(
            name="x", parameter_bytes=parameters, trainable_bytes=parameters, output_bytes=4, gradient_bytes=4,
            activation_bytes=activations, flops=1.0,
        )  # fmt: skip

    few = [layer(10, 10), layer(20, 10)]
    assert cheapest_run(few) == (0, 2)
    lo, hi = cheapest_run([layer(1000, 0)] * 6 + [layer(1, 1)] * 6 + [layer(0, 1000)] * 6)
    assert (lo, hi) == (6, 6 + hi - lo)
    assert hi <= 12


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": []}, "do not exist"),
        ({"layers": [7]}, "do not exist"),
        ({"batches": [0]}, "do not exist"),
        ({"run": {"program": None, "lo": 0, "hi": 2}}, "cannot be read"),
        ({"batches": "x"}, "cannot be read"),
    ],
)
def test_a_bad_bundle_is_refused(change: dict[str, object], says: str) -> None:
    imports = jobs.imported(jobs.job("mlp"))
    raw = {
        "batches": [1],
        "layers": [0],
        "optimizer": imports.spec.optimizer.model_dump(),
        "programs": [imports.model.stage(0, 1).shape_only().to_bytes().decode()],
    }
    Bundle.from_bytes(json.dumps(raw).encode())
    with pytest.raises(ProgramError, match=says):
        Bundle.from_bytes(json.dumps(raw | change).encode())
