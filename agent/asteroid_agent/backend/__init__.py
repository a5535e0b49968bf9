"""What computes: one protocol, several engines."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from asteroid_core.errors import InputError
from asteroid_core.program import StageProgram
from asteroid_core.spec import OptimizerSpec

if TYPE_CHECKING:
    from asteroid_agent.backend.base import Arrays, Backend


def open_backend(kind: str, program: StageProgram, state: Arrays, optimizer: OptimizerSpec, threads: float) -> Backend:
    """Load a program with its state into an engine.

    Raises:
        InputError: the engine is not installed, or unknown.
        ProgramError: the program cannot be run.
    """
    _need(kind)
    import torch

    from asteroid_agent.backend.torch_backend import TorchBackend

    torch.set_num_threads(max(1, int(threads)))
    return TorchBackend(program, state, optimizer)


def check_answer(kind: str, program: StageProgram) -> None:
    """Repeat the program's known-answer test on the engine.

    Raises:
        InputError: the engine is not installed, or unknown.
        ProgramError: this device computes something wrongly, or a foreign operator.
    """
    _need(kind)
    from asteroid_agent.backend.torch_backend import best_device
    from asteroid_core.known_answer import verify

    verify(program, best_device())


def _need(kind: str) -> None:
    if kind != "torch":
        raise InputError(f"The backend {kind!r} is unknown here.", "This device has: torch.")
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "This device has no torch.", "Install it: pip install 'asteroid-edge[torch]', then restart asteroid-agent."
        )
