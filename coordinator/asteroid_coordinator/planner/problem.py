"""What a planner is given: layers, what each device does with them, what it lends, how big a round is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from asteroid_core.costs import FeedCost, Network
from asteroid_core.memory import LayerSums, Memory
from asteroid_core.plan import Order, Tie
from asteroid_core.profile import DeviceProfile, LayerInfo
from asteroid_core.spec import OptimizerSpec


@dataclass(frozen=True)
class Site:
    """One device as the planner sees it.

    Attributes:
        name: of the device.
        profile: its measured times.
        budget_mb: memory that its owner lends.
    """

    name: str
    profile: DeviceProfile
    budget_mb: float


@dataclass(frozen=True)
class Tied:
    """A parameter that several layers use.

    Attributes:
        layers: those that use it.
        size: its bytes.
    """

    layers: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Wishes:
    """What the job asks of a plan.

    Attributes:
        batch: samples of a round.
        micro_sizes: micro-batch sizes that may be used; each divides ``batch``.
        order: 1F1B or GPipe.
        stages: exactly this many, if given.
        all_devices: leave no device out.
        required: devices that have to take part (the data lies there).
    """

    batch: int
    micro_sizes: tuple[int, ...]
    order: Order = "1f1b"
    stages: int | None = None
    all_devices: bool = False
    required: frozenset[str] = frozenset()

    def must(self, device: str) -> bool:
        """Whether a device has to get a share."""
        return self.all_devices or device in self.required


@dataclass(frozen=True)
class Problem:
    """Everything that decides a plan.

    Attributes:
        layers: of the model.
        sites: devices that may take part.
        wishes: of the job.
        optimizer: for the memory of its moments.
        tied: parameters that several layers use, by name.
        network: how devices reach each other.
        feed: how samples come; None: every device has them.
        snapshots: of its own state that each device keeps, see ``core.memory``.
    """

    layers: tuple[LayerInfo, ...]
    sites: tuple[Site, ...]
    wishes: Wishes
    optimizer: OptimizerSpec
    tied: Mapping[str, Tied]
    network: Network = field(default_factory=Network)
    feed: FeedCost | None = None
    snapshots: int = 1

    @cached_property
    def sums(self) -> LayerSums:
        """Sums over runs of layers."""
        return LayerSums(self.layers, self._ties, self.snapshots)

    @cached_property
    def _ties(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        return tuple((tied.layers, tied.size) for tied in self.tied.values())

    @cached_property
    def site(self) -> dict[str, Site]:
        """Devices by name."""
        return {site.name: site for site in self.sites}

    @cached_property
    def needed(self) -> frozenset[str]:
        """Devices that have to take part."""
        return frozenset(site.name for site in self.sites if self.wishes.must(site.name))

    @cached_property
    def divided(self) -> dict[object, tuple[int, ...] | None]:
        """Shares that were worked out before: plans that differ in little ask for the same ones."""
        return {}

    @cached_property
    def _measured(self) -> dict[str, LayerSums]:
        return {}

    @cached_property
    def _times(self) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
        return {}

    @cached_property
    def _steps(self) -> dict[str, list[float]]:
        return {}

    def times(self, site: Site, samples: int) -> tuple[list[float], list[float]]:
        """Prefix sums of forward and backward seconds over the layers, for a share of ``samples``."""
        key = (site.name, samples)
        if key not in self._times:
            forward, backward = [0.0], [0.0]
            for layer in site.profile.layers:
                forward.append(forward[-1] + layer.forward(samples))
                backward.append(backward[-1] + layer.backward(samples))
            self._times[key] = (forward, backward)
        return self._times[key]

    def compute(self, site: Site, lo: int, hi: int, samples: int) -> tuple[float, float]:
        """Seconds of forward and backward of layers ``[lo, hi)`` (Asteroid, Eq. 8, one device)."""
        if samples == 0:
            return 0.0, 0.0
        forward, backward = self.times(site, samples)
        return forward[hi] - forward[lo], backward[hi] - backward[lo]

    def step(self, site: Site, lo: int, hi: int) -> float:
        """Seconds of the optimizer step."""
        if site.name not in self._steps:
            steps = [0.0]
            for layer in site.profile.layers:
                steps.append(steps[-1] + layer.step_s)
            self._steps[site.name] = steps
        return self._steps[site.name][hi] - self._steps[site.name][lo]

    def memory(self, site: Site, lo: int, hi: int, samples: int, alive: int, replicas: int) -> Memory:
        """Memory of a share, see ``core.memory``."""
        sums = self.sums_of(site)
        return sums.memory(lo, hi, samples, alive, self.optimizer, replicas, site.profile.runtime_mb)

    def sums_of(self, site: Site) -> LayerSums:
        """Sums with what the device has measured in place of what the graph lets expect."""
        if site.name not in self._measured:
            if all(times.activation_bytes is None for times in site.profile.layers):
                return self._measured.setdefault(site.name, self.sums)
            layers = [
                info
                if times.activation_bytes is None
                else info.model_copy(update={"activation_bytes": times.activation_bytes})
                for info, times in zip(self.layers, site.profile.layers, strict=True)
            ]
            self._measured[site.name] = LayerSums(layers, self._ties, self.snapshots)
        return self._measured[site.name]

    def most(self, site: Site, lo: int, hi: int, alive: int, replicas: int) -> int:
        """Largest share that fits into the device's memory; 0 if not even one sample does."""
        sums = self.sums_of(site)
        left = int(site.budget_mb * 1e6) - int(site.profile.runtime_mb * 1e6)
        left -= sum(sums.held(lo, hi, self.optimizer, replicas))
        if left < 0:
            return 0
        each = alive * sums.per_sample(lo, hi)
        return left // each if each else self.wishes.batch

    def fits(self, site: Site, lo: int, hi: int, samples: int, alive: int, replicas: int) -> bool:
        """Whether the device lends that much."""
        return samples <= self.most(site, lo, hi, alive, replicas)

    def ties(self, cuts: Sequence[tuple[int, int]]) -> tuple[Tie, ...]:
        """Parameters that several of the stages ``[lo, hi)`` hold."""
        out = []
        for name, tied in sorted(self.tied.items()):
            stages = tuple(i for i, (lo, hi) in enumerate(cuts) if any(lo <= layer < hi for layer in tied.layers))
            if len(stages) > 1:
                out.append(Tie(name=name, stages=stages))
        return tuple(out)
