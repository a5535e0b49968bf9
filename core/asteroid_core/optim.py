"""Learning rate and clipping of one round: pure functions of the job, so every device computes the same numbers."""

from __future__ import annotations

import math

from asteroid_core.spec import OptimizerSpec


def learning_rate(spec: OptimizerSpec, round_number: int, rounds: int) -> float:
    """Return the learning rate of a round (counted from 0).

    Warm-up rises linearly and reaches ``lr`` in its last round; then constant, cosine to zero, or linear to zero over
    the rounds that remain.
    """
    warm = spec.warmup_rounds
    if round_number < warm:
        return spec.lr * (round_number + 1) / warm
    if spec.schedule == "constant":
        return spec.lr
    part = (round_number - warm) / max(1, rounds - warm)
    if spec.schedule == "linear":
        return spec.lr * (1.0 - part)
    return spec.lr * 0.5 * (1.0 + math.cos(math.pi * part))


def clip_scale(spec: OptimizerSpec, squared_norms: list[float]) -> float:
    """Return the factor on all gradients, from the squared norms of the stages in stage order.

    The same rule as ``torch.nn.utils.clip_grad_norm_``: ``max_norm / (norm + 1e-6)``, at most 1.
    """
    if spec.clip_norm is None:
        return 1.0
    return min(1.0, spec.clip_norm / (math.sqrt(math.fsum(squared_norms)) + 1e-6))
