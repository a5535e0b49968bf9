"""The known-answer test: what a right device computes on a seeded example.

The coordinator runs the rebuilt program once and writes down a summary; each worker repeats it before it says ready.
"""

from __future__ import annotations

import torch

from asteroid_core.known_answer import run_example
from asteroid_core.program import KnownAnswer, StageProgram

ROWS = 2


def known_answer(program: StageProgram) -> KnownAnswer:
    """Run a program on its seeded example and return the summary of every output and gradient.

    On one thread: the examples are small, and on a busy machine threads would wait for each other at every operator.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return KnownAnswer(rows=ROWS, answers=tuple(run_example(program, ROWS)))
    finally:
        torch.set_num_threads(threads)
