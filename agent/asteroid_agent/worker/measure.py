"""Measures layers on this device: time of forward and backward at several batch sizes, the optimizer step, a reduction.

Weights are made here (the time does not depend on their values), so only programs travel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asteroid_agent.backend import open_backend
from asteroid_agent.backend.base import Backend, SampleKeys
from asteroid_core.clock import Clock
from asteroid_core.errors import ProgramError
from asteroid_core.profile import LayerTimes
from asteroid_core.program import StageProgram
from asteroid_core.randomness import example_inputs, example_state, example_targets
from asteroid_core.reduce import add_in_order
from asteroid_core.spec import OptimizerSpec

REPEATS = 5
WINDOW_S = 0.03
"""Seconds over which a layer at one batch size is measured at least."""
MOST_REPEATS = 50
REDUCED_BYTES = 4 << 20
LEAST = 0.2
"""Part of a layer's measured time that is left to it at least."""
LAYER_S = 1.0
"""Seconds after which one layer at one batch size is not repeated any more."""

Seconds = npt.NDArray[np.float64]
"""``[2]``: on the wall clock, and of the processor."""
Now = Callable[[], Seconds]


@dataclass(frozen=True)
class Bundle:
    """What the coordinator sends: programs, which layer has which, batch sizes, optimizer.

    Attributes:
        programs: each different one once.
        layers: the program of each layer.
        batches: batch sizes to measure.
        optimizer: of the job.
        run: program of a run of layers, and the first one and one past the last; None: there is only one layer.
    """

    programs: tuple[StageProgram, ...]
    layers: tuple[int, ...]
    batches: tuple[int, ...]
    optimizer: OptimizerSpec
    run: tuple[StageProgram, int, int] | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """Read and check a bundle.

        Raises:
            ProgramError: it is not one.
        """
        try:
            raw = json.loads(data)
            programs = tuple(StageProgram.from_bytes(text.encode()) for text in raw["programs"])
            layers, batches = tuple(map(int, raw["layers"])), tuple(map(int, raw["batches"]))
            optimizer = OptimizerSpec.model_validate(raw["optimizer"])
            run = raw.get("run")
            if run is not None:
                run = (StageProgram.from_bytes(run["program"].encode()), int(run["lo"]), int(run["hi"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgramError(f"The layers to measure cannot be read: {error}.", "Upgrade the older side.") from None
        if not layers or not batches or not all(0 <= i < len(programs) for i in layers) or min(batches) < 1:
            raise ProgramError("The layers to measure name programs or batch sizes that do not exist.")
        if run is not None and not 0 <= run[1] < run[2] - 1 < len(layers):
            raise ProgramError("The layers to measure name a run of layers that does not exist.")
        return cls(programs, layers, batches, optimizer, run)


@dataclass(frozen=True)
class Measured:
    """What a device has measured.

    Attributes:
        layers: times of every layer.
        reduce_s_per_byte: seconds that a byte of a gradient takes on its way through a reduction, the wire apart.
        stretch: seconds that a second of processor time took.
    """

    layers: tuple[LayerTimes, ...]
    reduce_s_per_byte: float
    stretch: float


@dataclass(frozen=True)
class _Raw:
    """``LayerTimes`` on both clocks."""

    activation_bytes: int
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    step: Seconds


def measure(bundle: Bundle, threads: float, clock: Clock, cpu: Clock, progress: Callable[[int, int], None]) -> Measured:
    """Measure every different program, the run of layers, and a reduction.

    A single window of milliseconds under a CPU quota, or beside another process, catches more or less of the time that
    the device is kept from computing. So where the processor was shared, every time is that of the processor,
    stretched by what all windows together took on the wall clock.

    Args:
        bundle: what to measure.
        threads: processors that are lent.
        clock: on the wall.
        cpu: of this process.
        progress: told how many programs of how many are done.
    """

    def now() -> Seconds:
        return np.array([clock.now(), cpu.now()])

    def raw(program: StageProgram) -> _Raw:
        backend = open_backend("torch", program, example_state(program), bundle.optimizer, threads)
        return _measure(backend, program, bundle.batches, now)

    begin, programs = now(), []
    for number, program in enumerate(bundle.programs):
        programs.append(raw(program))
        progress(number + 1, len(bundle.programs))
    run = raw(bundle.run[0]) if bundle.run is not None else None
    reduction = _reduction(now)
    stretch = stretch_of(now() - begin)

    def times(one: _Raw) -> LayerTimes:
        return LayerTimes(
            activation_bytes=one.activation_bytes,
            batches=tuple(bundle.batches),
            forward_s=tuple(taken(seconds, stretch) for seconds in one.forward),
            backward_s=tuple(taken(seconds, stretch) for seconds in one.backward),
            step_s=taken(one.step, stretch),
        )

    layers = tuple(times(programs[i]) for i in bundle.layers)
    if run is not None and bundle.run is not None:
        layers = without_overhead(layers, times(run), *bundle.run[1:])
    return Measured(layers, taken(reduction, stretch), stretch)


def stretch_of(total: Seconds) -> float:
    """Return how long a second of processor time took; below 1 where several threads compute."""
    return float(total[0] / max(total[1], 1e-6))


def taken(seconds: Seconds, stretch: float) -> float:
    """Return how long something takes here.

    Where threads compute side by side, processor time says nothing of how long they take, and the wall clock counts.
    """
    return float(seconds[1] * stretch if stretch >= 1.0 else seconds[0])


def without_overhead(layers: Sequence[LayerTimes], run: LayerTimes, lo: int, hi: int) -> tuple[LayerTimes, ...]:
    """Take from each layer what being run apart costs it, as a run of several shows.

    Args:
        layers: all, measured one by one.
        run: layers ``[lo, hi)`` measured as one.
        lo: its first layer.
        hi: one past its last.
    """

    def less(sums: Sequence[Sequence[float]], whole: Sequence[float]) -> list[float]:
        """Seconds too much of one layer, at each batch size."""
        joints = hi - lo - 1
        return [max(sum(one[i] for one in sums) - whole[i], 0.0) / joints for i in range(len(whole))]

    forward = less([t.forward_s for t in layers[lo:hi]], run.forward_s)
    backward = less([t.backward_s for t in layers[lo:hi]], run.backward_s)
    return tuple(
        times.model_copy(
            update={
                "forward_s": tuple(max(s - o, s * LEAST) for s, o in zip(times.forward_s, forward, strict=True)),
                "backward_s": tuple(max(s - o, s * LEAST) for s, o in zip(times.backward_s, backward, strict=True)),
            }
        )
        for times in layers
    )


def _measure(backend: Backend, program: StageProgram, batches: Sequence[int], now: Now) -> _Raw:
    forward, backward = [], []
    for size in batches:
        begin = now()
        f, b = _once(backend, program, size, now)
        if (now() - begin)[0] < LAYER_S:  # the first run warms up, unless it takes long
            f, b = _mean(lambda size=size: _once(backend, program, size, now), now)  # type: ignore[misc]
        forward.append(f)
        backward.append(b)
    steps = []
    for _ in range(REPEATS):
        begin = now()
        backend.step(1e-6, 1.0)
        steps.append(now() - begin)
    rows = batches[-1]
    return _Raw(
        activation_bytes=-(-backend.kept_bytes(rows) // rows),
        forward=tuple(forward),
        backward=tuple(backward),
        step=np.median(steps, axis=0),  # the first one also makes the moments
    )


def _mean(run: Callable[[], tuple[Seconds, Seconds]], now: Now) -> tuple[Seconds, Seconds]:
    """Mean of forward and backward over at least ``REPEATS`` runs and ``WINDOW_S`` seconds."""
    begin, count, forward, backward = now(), 0, np.zeros(2), np.zeros(2)
    while True:
        f, b = run()
        count, forward, backward = count + 1, forward + f, backward + b
        spent = (now() - begin)[0]
        if spent > LAYER_S or count >= MOST_REPEATS or (count >= REPEATS and spent >= WINDOW_S):
            return forward / count, backward / count


def _reduction(now: Now) -> Seconds:
    """A byte of a gradient in a group of two, done as ``runner`` does it."""
    parts = [np.ones(REDUCED_BYTES // 16, np.float32) for _ in range(4)]
    begin, count = now(), 0
    while count < REPEATS or (now() - begin)[0] < WINDOW_S:
        vector = np.concatenate([np.concatenate(parts), parts[0][:1]])  # gradients, and the statistics behind them
        middle = len(vector) // 2
        half = add_in_order([vector[:middle], vector[middle : 2 * middle]])
        np.concatenate([half, half, vector[:1]], out=vector)
        count += 1
    seconds: Seconds = (now() - begin) / (count * REDUCED_BYTES)
    return seconds


def _once(backend: Backend, program: StageProgram, size: int, now: Now) -> tuple[Seconds, Seconds]:
    keys = SampleKeys(0, np.zeros(size, np.int64), np.arange(size))
    inputs = example_inputs(program, size)
    if program.loss is None:
        t0 = now()
        outputs = backend.forward(0, inputs, train=True, samples=keys)
        t1 = now()
        grads = [o for o, port in zip(outputs, program.outputs, strict=True) if port.grad]
        backend.backward(0, grads)
    else:
        targets = example_targets(program, size)
        t0 = now()
        backend.forward_loss(0, inputs, targets, float(size), train=True, samples=keys)
        t1 = now()
        backend.backward(0, None)
    t2 = now()
    backend.free(0)
    return t1 - t0, t2 - t1
