"""Measures layers on this device: time of forward and backward at several batch sizes, and the optimizer step.

Weights are made here (the time does not depend on their values), so only programs travel.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from asteroid_agent.backend import open_backend
from asteroid_agent.backend.base import Backend, SampleKeys
from asteroid_agent.worker.config import WorkerConfig
from asteroid_agent.worker.ports import TensorPort
from asteroid_agent.worker.shell import WorkerShell
from asteroid_core.clock import Clock
from asteroid_core.errors import ProgramError, WireError
from asteroid_core.ids import COORDINATOR
from asteroid_core.link.probe import ASK_TOGETHER, LinkSpeed, alone, together
from asteroid_core.profile import DeviceProfile, LayerTimes
from asteroid_core.program import StageProgram
from asteroid_core.randomness import example_inputs, example_state, example_targets
from asteroid_core.reduce import add_in_order
from asteroid_core.spec import OptimizerSpec
from asteroid_core.wire.tensor import Kind, Tag, Tensor

log = logging.getLogger(__name__)

REPEATS = 5
WINDOW_S = 0.03
"""Seconds over which a layer at one batch size is measured at least: its mean time then counts what a quota, a governor
or other work on the device takes away, which a median of single runs does not see."""
MOST_REPEATS = 50
REDUCED_BYTES = 4 << 20
LEAST = 0.2
"""Part of a layer's measured time that is left to it at least."""
LAYER_S = 1.0
"""Seconds after which one layer at one batch size is not repeated any more."""


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


def measure(
    bundle: Bundle, threads: float, clock: Clock, progress: Callable[[int, int], None]
) -> tuple[LayerTimes, ...]:
    """Measure every different program, and return the times of every layer."""
    times = []
    for number, program in enumerate(bundle.programs):
        backend = open_backend("torch", program, example_state(program), bundle.optimizer, threads)
        times.append(_measure(backend, program, bundle.batches, clock))
        progress(number + 1, len(bundle.programs))
    layers = tuple(times[i] for i in bundle.layers)
    if bundle.run is None:
        return layers
    program, lo, hi = bundle.run
    backend = open_backend("torch", program, example_state(program), bundle.optimizer, threads)
    return without_overhead(layers, _measure(backend, program, bundle.batches, clock), lo, hi)


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


def _measure(backend: Backend, program: StageProgram, batches: Sequence[int], clock: Clock) -> LayerTimes:
    forward, backward = [], []
    for size in batches:
        begin = clock.now()
        f, b = _once(backend, program, size, clock)
        if clock.now() - begin < LAYER_S:  # the first run warms up, unless it takes long
            f, b = _mean(lambda size=size: _once(backend, program, size, clock), clock)  # type: ignore[misc]
        forward.append(f)
        backward.append(b)
    steps = []
    for _ in range(REPEATS):
        begin = clock.now()
        backend.step(1e-6, 1.0)
        steps.append(clock.now() - begin)
    rows = batches[-1]
    return LayerTimes(
        activation_bytes=-(-backend.kept_bytes(rows) // rows),
        batches=tuple(batches),
        forward_s=tuple(forward),
        backward_s=tuple(backward),
        step_s=sorted(steps)[len(steps) // 2],  # the first one also makes the moments
    )


def _mean(run: Callable[[], tuple[float, float]], clock: Clock) -> tuple[float, float]:
    """Mean seconds of forward and backward over at least ``REPEATS`` runs and ``WINDOW_S`` seconds."""
    begin, count, forward, backward = clock.now(), 0, 0.0, 0.0
    while True:
        f, b = run()
        count, forward, backward = count + 1, forward + f, backward + b
        spent = clock.now() - begin
        if spent > LAYER_S or count >= MOST_REPEATS or (count >= REPEATS and spent >= WINDOW_S):
            return forward / count, backward / count


def _reduction(clock: Clock) -> float:
    """Seconds that a byte of a gradient takes on its way through a reduction, the wire apart: what ``runner`` does."""
    parts = [np.ones(REDUCED_BYTES // 16, np.float32) for _ in range(4)]
    begin, count = clock.now(), 0
    while count < REPEATS or clock.now() - begin < WINDOW_S:
        vector = np.concatenate([np.concatenate(parts), parts[0][:1]])  # gradients, and the statistics behind them
        middle = len(vector) // 2
        half = add_in_order([vector[:middle], vector[middle : 2 * middle]])
        np.array(np.concatenate([half, half]))
        count += 1
    return (clock.now() - begin) / (count * REDUCED_BYTES)


def _once(backend: Backend, program: StageProgram, size: int, clock: Clock) -> tuple[float, float]:
    keys = SampleKeys(0, np.zeros(size, np.int64), np.arange(size))
    inputs = example_inputs(program, size)
    t0 = clock.now()
    if program.loss is None:
        outputs = backend.forward(0, inputs, train=True, samples=keys)
        t1 = clock.now()
        grads = [o for o, port in zip(outputs, program.outputs, strict=True) if port.grad]
        backend.backward(0, grads)
    else:
        targets = example_targets(program, size)
        t0 = clock.now()
        backend.forward_loss(0, inputs, targets, float(size), train=True, samples=keys)
        t1 = clock.now()
        backend.backward(0, None)
    t2 = clock.now()
    backend.free(0)
    return t1 - t0, t2 - t1


def profile_device(
    config: WorkerConfig,
    link: TensorPort,
    shell: WorkerShell,
    clock: Clock,
    cpu: Clock,
    resident_mb: Callable[[], float],
) -> DeviceProfile:
    """Do as the coordinator asks: measure the link, alone and with the others, then the layers; return the profile.

    Raises:
        WireError: somebody else than the coordinator sends.
        ProgramError: the layers cannot be run here.
    """
    speed: LinkSpeed | None = None
    while True:
        shell.messages(0.0)
        received = link.receive(0.2)
        if received is None:
            continue
        kind, asked = received.tag.kind, received.tag.micro
        if received.src != COORDINATOR or kind not in (Kind.PROGRAM, Kind.PROBE):
            raise WireError(f"{received.src} sent a {kind.value}, only the coordinator's layers are expected.")
        if kind is Kind.PROGRAM:
            bundle = Bundle.from_bytes(bytes(received.tensor.data))
            link.release(received)
            break
        link.release(received)

        def poll() -> None:
            shell.messages(0.0)

        if asked == ASK_TOGETHER:
            answer = [together(link, config.agent, 1, clock, poll), 0.0]
        else:
            speed = alone(link, config.agent, 1, clock, poll, cpu)
            answer = [speed.bytes_per_s, speed.message_s]
        link.send(COORDINATOR, Tag(Kind.PROBE, 1, micro=asked), Tensor.of_numpy(np.array(answer)))
    begin, used = clock.now(), cpu.now()
    layers = measure(bundle, config.cores, clock, lambda done, total: log.debug("measured %d of %d", done, total))
    # How long a second of processor time takes where all that is lent computes: the link's thread takes from that.
    stretch = (clock.now() - begin) / max(cpu.now() - used, 1e-6)
    # Afterwards: the engine is loaded and has run, and the layers' weights are gone again.
    runtime_mb = resident_mb()
    if speed is None:
        speed = alone(link, config.agent, 1, clock, lambda: shell.messages(0.0), cpu)
    return DeviceProfile(
        device=config.agent,
        backend="torch",
        layers=layers,
        runtime_mb=runtime_mb,
        bytes_per_s=speed.bytes_per_s,
        message_s=speed.message_s,
        wire_s_per_byte=speed.cpu_s_per_byte * stretch,
        reduce_s_per_byte=_reduction(clock),
    )
