"""Kinds of device, and the model of how long they take: data-sheet peaks times stated efficiencies.

Time of a layer for b samples: the sum over its operators of

    max(b * flops / (peak * efficiency(kind)), (b * moved + weights) / (bandwidth * efficiency(memory))) + launch

where ``launch`` is the time to start one operator, so that small inputs are bound by it and time is far from
proportional to b. The backward of a convolution or a matrix product is two such operators (gradient of the input,
gradient of the weights or of the other factor); of anything else one that moves half as much again. What has weights
also adds their gradient to the sum over micro-batches: it reads both and writes one. The optimizer step moves each
parameter, its gradient and its moments.

The peaks are data-sheet figures. **The efficiencies, launch times and memory figures are assumptions**, each with its
reason; none has been measured here. Measured profiles (``asteroid profile``) take their place as soon as devices exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asteroid_coordinator.catalog.work import Kind, LayerWork, ModelWork, Operator
from asteroid_core.memory import moments
from asteroid_core.profile import LayerTimes
from asteroid_core.spec import OptimizerSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Shares for which times are given; between them they are interpolated."""


@dataclass(frozen=True)
class Figure:
    """A number, and where it comes from.

    Attributes:
        value: the number.
        why: its source, or the reasoning behind an assumption.
    """

    value: float
    why: str


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device.

    Attributes:
        id: in commands.
        short: its devices are called ``short-1``, ``short-2``, ...
        name: for people.
        peak_flops: 32-bit floating-point operations per second.
        bandwidth: of its memory, bytes per second.
        memory_mb: what is built in.
        lent_mb: what its owner can lend.
        runtime_mb: what a worker without a stage takes of that.
        launch_s: seconds to start one operator.
        efficiency: for each kind of work, the part of the peak (``memory``: of the bandwidth) that is reached.
    """

    id: str
    short: str
    name: str
    peak_flops: Figure
    bandwidth: Figure
    memory_mb: Figure
    lent_mb: Figure
    runtime_mb: Figure
    launch_s: Figure
    efficiency: Mapping[Kind, Figure]

    def forward(self, operators: Iterable[Operator], samples: float) -> float:
        """Seconds of the forward of these operators."""
        return sum(self._run(op, samples * op.flops, samples * op.moved + op.weights) for op in operators)

    def backward(self, operators: Iterable[Operator], samples: float) -> float:
        """Seconds of the backward of these operators, gradients added to those of earlier micro-batches."""
        total = 0.0
        for op in operators:
            if op.kind == "memory" and not op.moved:
                continue  # a counter
            if op.kind == "memory":
                total += self._run(op, samples * op.flops, 1.5 * samples * op.moved + op.weights)
            else:
                total += 2 * self._run(op, samples * op.flops, samples * op.moved + op.weights)
            if op.trained:
                total += self._move(3 * op.trained) + self.launch_s.value
        return total

    def step(self, layer: LayerWork, optimizer: OptimizerSpec) -> float:
        """Seconds of a layer's part of the optimizer step: gradient, parameter and moments are moved."""
        trained = layer.info.trainable_bytes
        return self._move(trained * (3 + 2 * moments(optimizer))) + self.launch_s.value if trained else 0.0

    def times(self, model: ModelWork, optimizer: OptimizerSpec) -> tuple[LayerTimes, ...]:
        """Times of every layer of a model, in the form of a measured profile."""
        return tuple(
            LayerTimes(
                batches=BATCHES,
                forward_s=tuple(self.forward(layer.operators, b) for b in BATCHES),
                backward_s=tuple(self.backward(layer.operators, b) for b in BATCHES),
                step_s=self.step(layer, optimizer),
            )
            for layer in model.layers
        )

    def figures(self) -> dict[str, Figure]:
        """Every number of this kind, by name."""
        return {
            "peak_flops": self.peak_flops,
            "bandwidth": self.bandwidth,
            "memory_mb": self.memory_mb,
            "lent_mb": self.lent_mb,
            "runtime_mb": self.runtime_mb,
            "launch_s": self.launch_s,
            **{f"efficiency_{kind}": figure for kind, figure in self.efficiency.items()},
        }

    def _run(self, op: Operator, flops: float, moved: float) -> float:
        moving = self._move(moved)
        if op.kind != "memory":
            moving = max(moving, flops / (self.peak_flops.value * self.efficiency[op.kind].value))
        return moving + self.launch_s.value

    def _move(self, size: float) -> float:
        return size / (self.bandwidth.value * self.efficiency["memory"].value)


_GPU: Mapping[Kind, Figure] = {
    "conv": Figure(
        0.45,
        "assumption: single precision, nothing fused; tuned inference reaches more than half of the peak",
    ),
    "depthwise": Figure(
        0.1, "assumption: each weight is used for one channel only, general kernels reach about a tenth"
    ),
    "matmul": Figure(0.6, "assumption: matrix products in single precision, some hundred rows and columns"),
    "memory": Figure(0.7, "assumption: plain copies reach about this part of a data-sheet bandwidth"),
}
_CPU: Mapping[Kind, Figure] = {
    "conv": Figure(0.4, "assumption: convolutions by blocked matrix products on all cores, some time spent on packing"),
    "depthwise": Figure(0.15, "assumption: vectors over the channels, bound by loads"),
    "matmul": Figure(0.6, "assumption: a tuned BLAS reaches 0.6 to 0.8 of the peak on large matrices, training less"),
    "memory": Figure(0.45, "assumption: four small cores reach about half of the bandwidth of their memory"),
}
_CUDA_RUNTIME = Figure(
    900, "assumption: interpreter, PyTorch and its CUDA and cuDNN libraries, and the CUDA context, in shared memory"
)
_CPU_RUNTIME = Figure(250, "assumption: interpreter and a PyTorch for processors, resident after the first step")


def _launch(seconds: float, cores: str) -> Figure:
    return Figure(seconds, f"assumption: PyTorch's dispatch and autograd for one operator on {cores}")


KINDS: dict[str, DeviceKind] = {
    kind.id: kind
    for kind in (
        DeviceKind(
            id="jetson-nano",
            short="nano",
            name="Jetson Nano",
            peak_flops=Figure(128 * 2 * 0.9216e9, "data sheet: 128 CUDA cores x 2 operations x 0.9216 GHz"),
            bandwidth=Figure(25.6e9, "data sheet: 64-bit LPDDR4 at 3200 MT/s"),
            memory_mb=Figure(4295, "data sheet: 4 GiB, shared by processor and graphics"),
            lent_mb=Figure(3200, "reasoned: 4.3 GB less 0.2 GB of carve-outs, 0.6 GB of the system, reserve"),
            runtime_mb=_CUDA_RUNTIME,
            launch_s=_launch(50e-6, "a Cortex-A57 of 1.43 GHz, launch of a CUDA kernel included"),
            efficiency=_GPU,
        ),
        DeviceKind(
            id="jetson-tx2",
            short="tx2",
            name="Jetson TX2",
            peak_flops=Figure(256 * 2 * 1.3e9, "data sheet: 256 CUDA cores x 2 operations x 1.3 GHz"),
            bandwidth=Figure(59.7e9, "data sheet: 128-bit LPDDR4 at 3733 MT/s"),
            memory_mb=Figure(8590, "data sheet: 8 GiB, shared by processor and graphics"),
            lent_mb=Figure(7000, "reasoned: 8.6 GB less 0.4 GB of carve-outs, 0.7 GB of the system, reserve"),
            runtime_mb=_CUDA_RUNTIME,
            launch_s=_launch(40e-6, "a Denver 2 or Cortex-A57 of 2 GHz, launch of a CUDA kernel included"),
            efficiency=_GPU,
        ),
        DeviceKind(
            id="jetson-xavier-nx",
            short="nx",
            name="Jetson Xavier NX",
            peak_flops=Figure(
                384 * 2 * 1.1e9, "data sheet: 384 CUDA cores x 2 operations x 1.1 GHz; tensor cores do no 32-bit floats"
            ),
            bandwidth=Figure(59.7e9, "data sheet: 128-bit LPDDR4x at 3733 MT/s (51.2 GB/s in its first edition)"),
            memory_mb=Figure(8590, "data sheet: 8 GiB, shared by processor and graphics"),
            lent_mb=Figure(7000, "reasoned: 8.6 GB less 0.4 GB of carve-outs, 0.7 GB of the system, reserve"),
            runtime_mb=_CUDA_RUNTIME,
            launch_s=_launch(30e-6, "a Carmel core of 1.9 GHz, launch of a CUDA kernel included"),
            efficiency=_GPU,
        ),
        DeviceKind(
            id="raspberry-pi-4",
            short="pi4",
            name="Raspberry Pi 4",
            peak_flops=Figure(
                4 * 8 * 1.8e9, "data sheet: 4 Cortex-A72 of 1.8 GHz x 8 operations (a 128-bit multiply-add a cycle)"
            ),
            bandwidth=Figure(12.8e9, "data sheet: 32-bit LPDDR4 at 3200 MT/s"),
            memory_mb=Figure(4295, "data sheet: the model of 4 GiB"),
            lent_mb=Figure(3500, "reasoned: 4.3 GB less 0.4 GB of a system without desktop, 0.4 GB in reserve"),
            runtime_mb=_CPU_RUNTIME,
            launch_s=_launch(25e-6, "a Cortex-A72 of 1.8 GHz"),
            efficiency=_CPU,
        ),
        DeviceKind(
            id="raspberry-pi-5",
            short="pi5",
            name="Raspberry Pi 5",
            peak_flops=Figure(
                4 * 16 * 2.4e9,
                "data sheet: 4 Cortex-A76 of 2.4 GHz x 16 operations (two 128-bit multiply-adds a cycle)",
            ),
            bandwidth=Figure(17.1e9, "data sheet: 32-bit LPDDR4X at 4267 MT/s"),
            memory_mb=Figure(8590, "data sheet: the model of 8 GiB"),
            lent_mb=Figure(7600, "reasoned: 8.6 GB less 0.4 GB of a system without desktop, 0.6 GB in reserve"),
            runtime_mb=_CPU_RUNTIME,
            launch_s=_launch(12e-6, "a Cortex-A76 of 2.4 GHz"),
            efficiency=_CPU,
        ),
        DeviceKind(
            id="mini-pc-n100",
            short="n100",
            name="mini PC with an Intel N100",
            peak_flops=Figure(
                4 * 16 * 2.9e9,
                "data sheet: 4 Gracemont cores x 16 operations (two 128-bit multiply-adds a cycle); "
                "2.9 GHz on all cores is an assumption (3.4 GHz is the turbo of one)",
            ),
            bandwidth=Figure(38.4e9, "data sheet: one 64-bit channel of DDR5 at 4800 MT/s"),
            memory_mb=Figure(17180, "assumption: sold with 16 GiB, the most that its data sheet allows"),
            lent_mb=Figure(14000, "reasoned: 17.2 GB less 2 GB of a system with desktop, 1.2 GB in reserve"),
            runtime_mb=_CPU_RUNTIME,
            launch_s=_launch(8e-6, "a Gracemont core of 3.4 GHz"),
            efficiency=_CPU,
        ),
    )
}
"""By the name that commands use."""
