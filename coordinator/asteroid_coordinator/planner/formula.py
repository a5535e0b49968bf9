"""The closed formulas of the round time: the paper's, and a lower bound that knows links of two directions.

Symbols are the paper's (Asteroid, section on the cost model): step s of S = 2P - 1, even ones compute, odd ones move;
E_f and E_b its forward and backward time of a micro-batch, T_a its allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from asteroid_core.costs import Costs
from asteroid_core.plan import Plan
from asteroid_core.routing import forward_routes


@dataclass(frozen=True)
class Step:
    """One step of the pipeline.

    Attributes:
        forward: E_f, seconds of a micro-batch.
        backward: E_b.
        allreduce: T_a.
    """

    forward: float
    backward: float
    allreduce: float = 0.0

    @property
    def both(self) -> float:
        """E_f + E_b."""
        return self.forward + self.backward


def paper_steps(plan: Plan, costs: Costs) -> list[Step]:
    """Return the steps of a plan by the paper's formulas (Eq. 5 and 8): the slowest link of two groups counts."""
    of = costs.by_name
    out: list[Step] = []
    for number, stage in enumerate(plan.stages):
        if number:
            around = (*plan.stages[number - 1].devices, *stage.devices)
            per_byte = plan.micro_size / min(of[d].bytes_per_s for d in around)
            out.append(Step(costs.activation_bytes[number - 1] * per_byte, costs.gradient_bytes[number - 1] * per_byte))
        members = [of[device] for device in stage.devices]
        group = len(members)
        slowest = min(m.bytes_per_s for m in members)
        out.append(
            Step(
                max(m.forward_s for m in members),
                max(m.backward_s for m in members),
                2 * (group - 1) / group * costs.reduce_bytes[number] / slowest,
            )
        )
    return out


def dominant(steps: Sequence[Step], micros: int) -> int:
    """The dominant step by the aligned rule (Eq. 11): M (E_f + E_b), and the steps before it."""
    before = list(accumulate((step.both for step in steps), initial=0.0))
    return max(range(len(steps)), key=lambda c: micros * steps[c].both + before[c])


def latency(steps: Sequence[Step], micros: int) -> float:
    """Seconds of an HPP round (Asteroid, Eq. 4 to 6): the latest end of waiting, execution and allreduce of a step."""
    dm = dominant(steps, micros)
    before = list(accumulate((step.both for step in steps), initial=0.0))
    execute = micros * steps[dm].both
    waiting, longest = 0.0, 0.0
    for s, step in enumerate(steps):
        longest = max(longest, waiting + max(execute + before[dm] - before[s], 0.0) + step.allreduce)
        waiting += step.forward
    return longest


def paper_round(plan: Plan, costs: Costs) -> float:
    """Round time by the paper's formula, with the optimizer step of the slowest device."""
    return latency(paper_steps(plan, costs), plan.micro_count) + max(cost.step_s for cost in costs.devices)


def lower_bound(plan: Plan, costs: Costs) -> float:
    """Return a round time that no execution of the plan's schedules can beat, in seconds.

    Every resource (a device, a direction of a link, the broker's link) has to do all of its work; a device's work
    begins after the first micro-batch has come through the stages before it, and what follows its last backward has to
    go back through them. And no more than K micro-batches may be between a device's forward and its backward.
    """
    of, micros = costs.by_name, plan.micro_count
    direct = costs.network.direct
    up = dict.fromkeys(plan.devices, 0.0)
    down = dict.fromkeys(plan.devices, 0.0)
    hub = fed = 0.0
    fill = drain = 0.0
    best = 0.0
    wait = 0.0 if len(plan.devices) == 1 else min(cost.message_s for cost in costs.devices)
    step = max(cost.step_s for cost in costs.devices)
    returns = _returns(plan, costs, wait)
    for number, stage in enumerate(plan.stages):
        members = [of[device] for device in stage.devices]
        group, held = len(members), costs.reduce_bytes[number]
        for m in members:
            reduce = 0.0
            if group > 1:
                # A shard to each other member, then the sum: once through the broker, else once for each.
                sums = (group - 1) / group if direct else 1 / group
                up[m.device] += held * ((group - 1) / group + sums)
                down[m.device] += 2 * held * (group - 1) / group
                # After its own last backward: all its shards, and then the sum of the member that got the last one.
                reduce = held / m.bytes_per_s + 2 * wait
            own = m.forward_s + m.backward_s
            turns = 1 if plan.order == "gpipe" else -(-micros // min(stage.warm_up, micros))
            busy = max(micros * own, turns * (own + returns[number]))
            best = max(best, fill + busy + max(drain, reduce) + step + wait)
        hub += 2 * held * (group - 1)
        if number + 1 < len(plan.stages):
            act, grad = costs.activation_bytes[number], costs.gradient_bytes[number]
            receivers = plan.stages[number + 1].shares
            for route in forward_routes(plan, number):
                rows = micros * (route.hi - route.lo)
                up[route.source] += rows * act
                down[route.source] += rows * grad
                up[route.target] += rows * grad
                down[route.target] += rows * act
            hub += micros * plan.micro_size * (act + grad)
            fill += min(m.forward_s for m in members) + wait
            fill += min(share.samples * act / of[share.device].bytes_per_s for share in receivers)
            drain += min(m.backward_s for m in members) + wait
            drain += min(share.samples * grad / of[share.device].bytes_per_s for share in stage.shares)
    feed = costs.feed
    if feed is not None:
        for stage, size in ((plan.stages[0], feed.sample_bytes), (plan.stages[-1], feed.target_bytes)):
            for share in stage.shares:
                if share.device != feed.device:
                    moved = micros * share.samples * size
                    down[share.device] += moved
                    fed += moved
        if feed.device in up:
            up[feed.device] += fed
        else:
            best = max(best, fed / feed.bytes_per_s)
    for cost in costs.devices:
        best = max(best, max(up[cost.device], down[cost.device]) / cost.bytes_per_s)
    if not direct and costs.network.hub_bytes_per_s is not None:
        best = max(best, (hub + fed) / costs.network.hub_bytes_per_s)
    return best


def _returns(plan: Plan, costs: Costs, wait: float) -> list[float]:
    """For each stage, the shortest time from the end of a forward until its gradient is back."""
    of = costs.by_name
    out = [0.0]
    for number in range(len(plan.stages) - 2, -1, -1):
        act, grad = costs.activation_bytes[number], costs.gradient_bytes[number]
        here, behind = plan.stages[number].shares, plan.stages[number + 1].shares
        there = min(share.samples * act / of[share.device].bytes_per_s for share in behind)
        back = min(share.samples * grad / of[share.device].bytes_per_s for share in here)
        through = min(of[s.device].forward_s for s in behind) + min(of[s.device].backward_s for s in behind)
        out.append(there + through + back + 2 * wait + out[-1])
    return out[::-1]
