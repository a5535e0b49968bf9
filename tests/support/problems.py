"""Small planning problems, made from numbers."""

from __future__ import annotations

from collections.abc import Sequence

from asteroid_coordinator.planner.problem import Problem, Site, Tied, Wishes
from asteroid_core.profile import DeviceProfile, LayerInfo, LayerTimes
from asteroid_core.spec import OptimizerSpec

BATCHES = (1, 2, 4, 8, 16)


def layer(number: int, weights: int = 1_000, activation: int = 1_000, cut: int = 100) -> LayerInfo:
    """A layer of so many bytes."""
    return LayerInfo(
        name=f"layer{number}",
        parameter_bytes=weights,
        trainable_bytes=weights,
        output_bytes=cut,
        gradient_bytes=cut,
        activation_bytes=activation,
        flops=1.0,
    )


def site(name: str, seconds: Sequence[float], budget_mb: float = 1000.0, bytes_per_s: float = 1e9) -> Site:
    """A device that needs so many seconds for each layer's forward of one sample, twice as many for its backward."""
    layers = tuple(
        LayerTimes(
            batches=BATCHES, forward_s=tuple(s * b for b in BATCHES), backward_s=tuple(2 * s * b for b in BATCHES)
        )
        for s in seconds
    )
    profile = DeviceProfile(device=name, backend="torch", layers=layers, bytes_per_s=bytes_per_s, message_s=1e-5)
    return Site(name, profile, budget_mb)


def problem(
    sites: Sequence[Site],
    layers: Sequence[LayerInfo],
    wishes: Wishes | None = None,
    tied: dict[str, Tied] | None = None,
    optimizer: OptimizerSpec | None = None,
) -> Problem:
    """Put one together."""
    return Problem(
        layers=tuple(layers),
        sites=tuple(sites),
        wishes=wishes or Wishes(batch=16, micro_sizes=(4, 2)),
        optimizer=optimizer or OptimizerSpec(momentum=0.0),
        tied=tied or {},
    )
