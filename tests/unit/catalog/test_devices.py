"""The model of a device's time, and that every figure says where it comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asteroid_coordinator.catalog.devices import BATCHES, KINDS, DeviceKind
from asteroid_coordinator.catalog.models import PAPER, model
from asteroid_coordinator.catalog.work import Operator
from asteroid_core.spec import OptimizerSpec

NANO = KINDS["jetson-nano"]
CONV = Operator("conv", 2e6, 10_000, 4_000, 4_000)


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_figure_has_a_source_or_a_reason(kind: DeviceKind) -> None:
    for name, figure in kind.figures().items():
        assert figure.value > 0, name
        assert figure.why.startswith(("data sheet: ", "assumption: ", "reasoned: ")), name
        assert len(figure.why) > 20, name
    assert set(kind.efficiency) == {"conv", "depthwise", "matmul", "memory"}
    assert all(figure.value < 1 for figure in kind.efficiency.values())
    assert kind.runtime_mb.value < kind.lent_mb.value < kind.memory_mb.value


def test_the_slower_of_computing_and_moving_counts_and_each_operator_has_a_launch() -> None:
    flops = NANO.peak_flops.value * NANO.efficiency["conv"].value
    moving = NANO.bandwidth.value * NANO.efficiency["memory"].value
    launch = NANO.launch_s.value
    assert NANO.forward([CONV], 8) == pytest.approx(8 * 2e6 / flops + launch)
    starved = Operator("conv", 1.0, 10_000, 4_000)
    assert NANO.forward([starved], 8) == pytest.approx((8 * 10_000 + 4_000) / moving + launch)
    assert NANO.forward([CONV, starved], 8) == pytest.approx(NANO.forward([CONV], 8) + NANO.forward([starved], 8))


def test_a_backward_is_two_products_and_adds_the_weights_gradient_to_the_sum() -> None:
    moving = NANO.bandwidth.value * NANO.efficiency["memory"].value
    adding = 3 * CONV.trained / moving + NANO.launch_s.value
    assert NANO.backward([CONV], 8) == pytest.approx(2 * NANO.forward([CONV], 8) + adding)
    plain = Operator("memory", 0.0, 9_000)
    assert NANO.backward([plain], 8) == pytest.approx(1.5 * 8 * 9_000 / moving + NANO.launch_s.value)


def test_a_counter_has_no_backward() -> None:
    counter = Operator("memory", 0.0, 0)
    assert NANO.forward([counter], 8) == NANO.launch_s.value
    assert NANO.backward([counter], 8) == 0


def test_kinds_of_work_differ() -> None:
    dense, single = Operator("conv", 1e9, 1), Operator("depthwise", 1e9, 1)
    assert NANO.forward([single], 1) > 3 * NANO.forward([dense], 1)


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(PAPER)), st.sampled_from(BATCHES[:-1]))
def test_more_samples_take_longer_but_never_longer_than_one_by_one(kind: str, name: str, batch: int) -> None:
    device = KINDS[kind]
    for layer in model(name).layers:
        for time in (device.forward, device.backward):
            one, two = time(layer.operators, batch), time(layer.operators, 2 * batch)
            assert one <= two <= 2 * one * (1 + 1e-12)


def test_small_inputs_are_bound_by_launches_and_large_ones_are_not() -> None:
    small = [op for layer in model("mobilenet-v2").layers for op in layer.operators]
    large = [op for layer in model("resnet-50").layers for op in layer.operators]
    assert NANO.forward(small, 8) < 2 * NANO.forward(small, 1)
    assert NANO.forward(large, 8) > 6 * NANO.forward(large, 1)


def test_the_step_moves_the_moments() -> None:
    layer = model("resnet-50").layers[0]
    launch = NANO.launch_s.value

    def moved(optimizer: OptimizerSpec) -> float:
        return NANO.step(layer, optimizer) - launch

    plain = moved(OptimizerSpec(momentum=0.0))
    assert moved(OptimizerSpec(momentum=0.9)) == pytest.approx(plain * 5 / 3)
    assert moved(OptimizerSpec(kind="adamw")) == pytest.approx(plain * 7 / 3)


def test_times_have_the_form_of_a_profile() -> None:
    work = model("mobilenet-v2")
    times = NANO.times(work, OptimizerSpec())
    assert len(times) == len(work.layers)
    for layer, time in zip(work.layers, times, strict=True):
        assert time.batches == BATCHES
        assert time.forward(16) == NANO.forward(layer.operators, 16)
        assert time.backward(1) == NANO.backward(layer.operators, 1)


def test_stronger_boards_are_faster() -> None:
    operators = [op for layer in model("resnet-50").layers for op in layer.operators]
    seconds = [KINDS[kind].forward(operators, 8) for kind in ("jetson-xavier-nx", "jetson-tx2", "jetson-nano")]
    assert seconds == sorted(seconds)
    cpus = [KINDS[kind].forward(operators, 8) for kind in ("mini-pc-n100", "raspberry-pi-5", "raspberry-pi-4")]
    assert cpus == sorted(cpus)
