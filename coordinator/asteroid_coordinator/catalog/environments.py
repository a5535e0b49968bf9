"""Clusters: devices of the catalog, how they are connected, and the planning problem that they pose.

Environments A to D are ours, **after Asteroid**: the paper's evaluation has clusters of Jetson boards too, but these
mixes are not taken from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asteroid_coordinator.catalog.devices import KINDS, DeviceKind
from asteroid_coordinator.catalog.naming import unknown
from asteroid_coordinator.catalog.work import ModelWork
from asteroid_coordinator.planner.problem import Problem, Site, Tied, Wishes
from asteroid_core.costs import Network
from asteroid_core.errors import InputError
from asteroid_core.profile import DeviceProfile
from asteroid_core.spec import OptimizerSpec

NetworkKind = Literal["direct", "hub"]

NETWORKS: dict[NetworkKind, str] = {
    "direct": "through a switch, each pair of devices on its own (the paper's setting)",
    "hub": "everything through the broker, whose own link all share",
}

ENVIRONMENTS: dict[str, dict[str, int]] = {
    "A": {"jetson-nano": 5},
    "B": {"jetson-xavier-nx": 1, "jetson-tx2": 2, "jetson-nano": 3},
    "C": {"jetson-tx2": 1, "jetson-nano": 3},
    "D": {"jetson-tx2": 2, "jetson-nano": 3},
}
"""Devices of each environment; ours, after Asteroid."""

SPEEDS = (25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
"""Link speeds of a sweep, in Mbit/s."""

GOODPUT = 0.94
"""Part of an Ethernet link's speed that TCP delivers: 1448 of the 1538 bytes that a full frame takes on the wire."""

MESSAGE_S: dict[NetworkKind, float] = {"direct": 0.0005, "hub": 0.001}
"""Assumption: fixed time of a tensor, for system calls, wake-ups and the switch; a broker is a second such stop."""

LARGEST_MICRO = 256
"""Assumption: largest micro-batch that is planned, for every planner. Larger ones would help a device that works alone
on small pictures, which is bound by launches (a third on the strongest board), and leave pipelines as they are."""

MOST_DEVICES = 32
"""More would take a planner longer than anybody waits."""

DEFAULT_BATCH = 256
"""Assumption: samples of a round, for every model; what the paper used for each is not known here."""

SGD = OptimizerSpec(kind="sgd", momentum=0.9)
"""Optimizer unless a job names another."""


@dataclass(frozen=True)
class Machine:
    """One device of a cluster."""

    name: str
    kind: DeviceKind


@dataclass(frozen=True)
class Cluster:
    """Devices and their network.

    Attributes:
        id: letter of the environment, or the list that a person gave.
        machines: the devices.
        mbit: speed of each one's link, each direction, in Mbit/s.
        network: how they reach each other.
        hub_mbit: speed of the broker's own link; None: the same as theirs, since it hangs on the same switch.
    """

    id: str
    machines: tuple[Machine, ...]
    mbit: float
    network: NetworkKind = "direct"
    hub_mbit: float | None = None

    @property
    def devices(self) -> str:
        """For people: ``1 NX, 2 TX2, 3 Nano``."""
        counts: dict[str, int] = {}
        for machine in self.machines:
            counts[machine.kind.name] = counts.get(machine.kind.name, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in counts.items())

    def links(self) -> Network:
        """The network in the planner's terms."""
        if self.network == "direct":
            return Network(direct=True)
        return Network(direct=False, hub_bytes_per_s=_bytes_per_s(self.hub_mbit or self.mbit))

    def sites(self, model: ModelWork, optimizer: OptimizerSpec = SGD) -> tuple[Site, ...]:
        """The devices as the planner sees them, with a profile of the model by the catalog."""
        times = {kind.id: kind.times(model, optimizer) for kind in {m.kind.id: m.kind for m in self.machines}.values()}
        return tuple(
            Site(
                machine.name,
                DeviceProfile(
                    device=machine.name,
                    backend="catalog",
                    layers=times[machine.kind.id],
                    runtime_mb=machine.kind.runtime_mb.value,
                    bytes_per_s=_bytes_per_s(self.mbit),
                    message_s=MESSAGE_S[self.network],
                ),
                machine.kind.lent_mb.value,
            )
            for machine in self.machines
        )

    def problem(
        self,
        model: ModelWork,
        batch: int = DEFAULT_BATCH,
        optimizer: OptimizerSpec = SGD,
        micro_sizes: Sequence[int] | None = None,
    ) -> Problem:
        """What a planner is given: this model on this cluster; every device has the samples (the paper's setting).

        Args:
            model: to train.
            batch: samples of a round.
            optimizer: for memory and the step.
            micro_sizes: allowed micro-batches; default: ``micro_sizes_of`` the batch.
        """
        return Problem(
            layers=tuple(layer.info for layer in model.layers),
            sites=self.sites(model, optimizer),
            wishes=Wishes(batch, tuple(micro_sizes or micro_sizes_of(batch))),
            optimizer=optimizer,
            tied={name: Tied(tied.layers, tied.size) for name, tied in model.tied.items()},
            network=self.links(),
        )


def micro_sizes_of(batch: int) -> tuple[int, ...]:
    """Powers of two up to ``LARGEST_MICRO`` that divide a batch, largest first."""
    sizes = [1 << power for power in range(LARGEST_MICRO.bit_length())]
    return tuple(size for size in reversed(sizes) if size <= LARGEST_MICRO and batch % size == 0)


def environment(id: str, mbit: float, network: NetworkKind = "direct", hub_mbit: float | None = None) -> Cluster:
    """Return one of the environments A to D.

    Raises:
        InputError: there is none of this name.
    """
    if id.upper() not in ENVIRONMENTS:
        raise unknown("environment", id, ENVIRONMENTS)
    return _cluster(id.upper(), ENVIRONMENTS[id.upper()], mbit, network, hub_mbit)


def own_cluster(text: str, mbit: float, network: NetworkKind = "direct", hub_mbit: float | None = None) -> Cluster:
    """Return a cluster of a list like ``jetson-nano:3,raspberry-pi-5``.

    Raises:
        InputError: it cannot be read, or names a kind that is not in the catalog.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, colon, number = part.strip().partition(":")
        if kind not in KINDS:
            raise unknown("device", kind, KINDS)
        if colon and not (number.isascii() and number.isdigit() and int(number) > 0):
            raise InputError(
                f"{part.strip()!r} is not KIND:COUNT.", "Write for example jetson-nano:3,raspberry-pi-5:2."
            )
        counts[kind] = counts.get(kind, 0) + (int(number) if colon else 1)
    if (total := sum(counts.values())) > MOST_DEVICES:
        raise InputError(f"{total} devices are more than can be planned.", f"Ask for {MOST_DEVICES} at most.")
    return _cluster(",".join(f"{kind}:{count}" for kind, count in counts.items()), counts, mbit, network, hub_mbit)


def _cluster(id: str, counts: dict[str, int], mbit: float, network: NetworkKind, hub_mbit: float | None) -> Cluster:
    for speed in (mbit, hub_mbit):
        if speed is not None and not 0 < speed < float("inf"):
            raise InputError(f"{speed:g} Mbit/s is no speed of a link.", "Give a number above 0, for example 100.")
    machines = tuple(
        Machine(f"{KINDS[kind].short}-{number}", KINDS[kind])
        for kind, count in counts.items()
        for number in range(1, count + 1)
    )
    return Cluster(id, machines, mbit, network, hub_mbit)


def _bytes_per_s(mbit: float) -> float:
    return mbit * 1e6 / 8 * GOODPUT
