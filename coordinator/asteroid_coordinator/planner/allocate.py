"""Divides a micro-batch among the devices of one group (Asteroid, Algorithm 1), within each one's memory."""

from __future__ import annotations

from collections.abc import Sequence

from asteroid_coordinator.planner.problem import Problem, Site


def allocate(
    problem: Problem, group: Sequence[Site], lo: int, hi: int, micro: int, alive: int
) -> tuple[int, ...] | None:
    """Return each device's samples, 0 for one that is better left out; None if the micro-batch does not fit.

    Phase 1 (memory-aware balancing): shares proportional to speed, capped by memory, the rest to those with room.
    Phase 2 (straggler offloading): samples move from the slowest to the fastest while that makes the slowest faster.

    Args:
        problem: times and memory.
        group: devices, in row order.
        lo: first layer.
        hi: one past the last layer.
        micro: samples to divide.
        alive: micro-batches alive at once (K); the memory check needs the true one.
    """
    most = [min(problem.most(site, lo, hi, alive, len(group)), micro) for site in group]
    least = [1 if problem.wishes.must(site.name) else 0 for site in group]
    if sum(least) > micro or any(a > b for a, b in zip(least, most, strict=True)):
        return None
    speed = [1.0 / max(sum(problem.compute(site, lo, hi, micro)), 1e-12) for site in group]
    shares = list(least)
    left = micro - sum(least)
    while left:
        open_ = [i for i in range(len(group)) if shares[i] < most[i]]
        if not open_:
            return None
        wanted = _proportional(left, [speed[i] for i in open_])
        for i, want in zip(open_, wanted, strict=True):
            take = min(want, most[i] - shares[i])
            shares[i] += take
            left -= take

    def seconds(i: int, samples: int) -> float:
        return sum(problem.compute(group[i], lo, hi, samples))

    while True:
        slow = max(range(len(group)), key=lambda i: seconds(i, shares[i]))
        others = [i for i in range(len(group)) if i != slow and shares[i] < most[i]]
        if not others or shares[slow] == least[slow]:
            break
        fast = min(others, key=lambda i: seconds(i, shares[i] + 1))
        if seconds(fast, shares[fast] + 1) >= seconds(slow, shares[slow]):
            break
        shares[slow] -= 1
        shares[fast] += 1
    return tuple(shares)


def _proportional(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to ``total``: floor, then the largest remainders."""
    scale = total / sum(weights)
    exact = [weight * scale for weight in weights]
    out = [int(value) for value in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (out[i] - exact[i], i))
    for i in by_rest[: total - sum(out)]:
        out[i] += 1
    return out
