"""Who keeps which state: what can be restored after a loss, what is durable, who sends what to whom. Pure.

A snapshot is the state of a run of layers after so many rounds. The same rounds give the same state in every
generation (replay is exact), so pieces of one round that were kept in different generations fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import Field

from asteroid_core.plan import Frozen, Plan

Value = TypeVar("Value")

OPTIMIZER_PREFIX = "opt/"
"""Begins the names of optimizer state: ``opt/<parameter>/<slot>``, and ``opt/<counter>`` for all parameters."""


class Held(Frozen):
    """A device keeps the state of layers ``[lo, hi)`` after ``rounds`` rounds.

    Attributes:
        device: that keeps it.
        generation: in which the snapshot was taken.
        rounds: completed rounds.
        lo: first layer.
        hi: one past the last layer.
    """

    device: str
    generation: int = Field(ge=0)
    rounds: int = Field(ge=0)
    lo: int = Field(ge=0)
    hi: int = Field(gt=0)


class Source(Frozen):
    """Where the state of layers ``[lo, hi)`` is fetched."""

    device: str
    lo: int = Field(ge=0)
    hi: int = Field(gt=0)


def holders(held: Iterable[Held], rounds: int, layers: int) -> list[set[str]]:
    """Devices that keep each layer's state after ``rounds`` rounds."""
    out: list[set[str]] = [set() for _ in range(layers)]
    for item in held:
        if item.rounds == rounds:
            for layer in range(item.lo, min(item.hi, layers)):
                out[layer].add(item.device)
    return out


def newest(held: Collection[Held], layers: int, saved: int) -> int:
    """Most rounds whose state can be put together: from devices, or ``saved`` rounds from the coordinator."""
    rounds = {item.rounds for item in held if item.rounds > saved}
    return max((r for r in rounds if all(holders(held, r, layers))), default=saved)


def secured(held: Iterable[Held], generation: int, rounds: int, plan: Plan) -> bool:
    """Whether any single loss leaves the state of ``rounds`` rounds whole, by snapshots of this generation alone."""
    mine = [item for item in held if item.generation == generation and item.device in plan.devices]
    return all(len(devices) > 1 for devices in holders(mine, rounds, plan.layers))


def sources(
    held: Collection[Held], rounds: int, plan: Plan, fallback: str, only: str | None = None
) -> dict[str, tuple[Source, ...]]:
    """Say for each device of a plan where the state of its layers comes from.

    What a device keeps itself it takes from there; of several others the one with the fewest layers to send so far is
    asked, so that transfers run side by side.

    Args:
        held: who keeps what.
        rounds: wanted.
        plan: new one.
        fallback: is asked for what no device keeps (the coordinator).
        only: if given, everything comes from there.
    """
    layers = plan.layers
    keep = holders(held, rounds, layers)
    sending: Counter[str] = Counter()
    out: dict[str, tuple[Source, ...]] = {}
    for stage in plan.stages:
        for device in stage.devices:
            chosen: list[str] = []
            for layer in range(stage.lo, stage.hi):
                have = keep[layer]
                if only is not None:
                    choice = only
                elif device in have:
                    choice = device
                elif chosen and chosen[-1] in have:
                    choice = chosen[-1]
                else:
                    choice = min(have, key=lambda name: (sending[name], name), default=fallback)
                if choice != device:
                    sending[choice] += 1
                chosen.append(choice)
            out[device] = _runs(chosen, stage.lo)
    return out


def _runs(chosen: Sequence[str], at: int) -> tuple[Source, ...]:
    out: list[Source] = []
    for layer, device in enumerate(chosen, at):
        if out and out[-1].device == device:
            out[-1] = Source(device=device, lo=out[-1].lo, hi=layer + 1)
        else:
            out.append(Source(device=device, lo=layer, hi=layer + 1))
    return tuple(out)


def of_names(state: Mapping[str, Value], names: Collection[str]) -> dict[str, Value]:
    """Weights and buffers of these names, their optimizer state (``opt/<name>/<slot>``), and counters (``opt/<x>``)."""
    wanted = frozenset(names)
    out: dict[str, Value] = {}
    for key, value in state.items():
        name = key.removeprefix(OPTIMIZER_PREFIX).rpartition("/")[0] if key.startswith(OPTIMIZER_PREFIX) else key
        if name in wanted or not name:
            out[key] = value
    return out
