"""What a worker's sign of life says, and that the stage runner keeps it up to date."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.support import cluster, jobs
from tests.support.worker import ScriptedLink

from asteroid_agent.backend import open_backend
from asteroid_agent.worker.mailbox import Expected, Mailbox, PassKey
from asteroid_agent.worker.pulse import Heart, Moment, Name, Pulse, beat
from asteroid_agent.worker.runner import StageRunner
from asteroid_core.clock import MonotonicClock
from asteroid_core.ids import COORDINATOR
from asteroid_core.patience import FLOOR_S
from asteroid_core.program import StageProgram
from asteroid_core.schedule import Op
from asteroid_core.wire.messages import Beat
from asteroid_core.wire.tensor import Kind, Tag

NAME = Name("a", "j")


class Clock:
    """Moved by hand."""

    time = 100.0

    def now(self) -> float:
        return self.time


def _beat(moment: Moment, chunks: int = 0, now: float = 0.0) -> Beat:
    return beat(NAME, "c1", 1, moment, chunks, now)


def test_a_beat_says_how_far_the_worker_is_and_whom_it_waits_for() -> None:
    said = _beat(Moment(3, 17, ("b", "c"), since=10.0, patience_s=20.0), chunks=5, now=30.0)
    assert (said.agent, said.job, said.generation, said.connection, said.count) == ("a", "j", 3, "c1", 1)
    assert (said.progress, said.waiting, said.late) == (22, ("b", "c"), False)
    assert _beat(Moment(3, 17, ("b",), since=10.0, patience_s=20.0), now=30.1).late


def test_who_computes_is_never_late() -> None:
    assert not _beat(Moment(1, 0, (), since=0.0, patience_s=1.0), now=1000.0).late


def test_progress_never_falls_and_a_generation_begins_with_the_coordinators_turn() -> None:
    pulse, said = Pulse(), list[Moment]()
    story: list[Callable[[], None]] = [
        lambda: pulse.enter(1, 5.0),
        pulse.work,
        pulse.done,
        lambda: pulse.wait(("b",), 6.0, 10.0),
        pulse.done,
        lambda: pulse.enter(2, 9.0),
        pulse.work,
        lambda: pulse.idle(11.0),
    ]
    for do in story:
        do()
        said.append(pulse.moment)
    assert [m.generation for m in said] == [1] * 5 + [2] * 3
    assert all(before.steps <= after.steps for before, after in pairwise(said))
    assert [m.waiting for m in said] == [(COORDINATOR,), (), (), ("b",), (), (COORDINATOR,), (), (COORDINATOR,)]
    assert (said[3].since, said[5].since, said[7].since) == (6.0, 9.0, 11.0)


def test_a_heart_beats_once_the_worker_has_spoken_and_counts_from_one() -> None:
    spoken, said = [""], list[Beat]()
    heart = Heart(NAME, Pulse(), lambda: 3, lambda: spoken[0], Clock(), said.append)
    heart.once()
    spoken[0] = "c1"
    heart.once()
    heart.once()
    assert [(b.count, b.connection, b.progress) for b in said] == [(1, "c1", 3), (2, "c1", 3)]


def test_who_is_missing_is_named_once_in_order() -> None:
    mail: Mailbox[str] = Mailbox()
    key = PassKey(0, 4)
    expected = [Expected(source, index, Kind.ACT) for source in ("b", "c") for index in (0, 1)]
    assert mail.missing(key, Op.RECV_ACT, 2, expected) == ("b", "c")
    mail.put("b", Tag(Kind.ACT, 1, 4, 2, 0), "x")
    assert mail.missing(key, Op.RECV_ACT, 2, expected) == ("b", "c")
    mail.put("b", Tag(Kind.ACT, 1, 4, 2, 1), "x")
    assert mail.missing(key, Op.RECV_ACT, 2, expected) == ("c",)
    for index in (0, 1):
        mail.put("c", Tag(Kind.ACT, 1, 4, 2, index), "x")
    assert mail.missing(key, Op.RECV_ACT, 2, expected) == ()


class _Enough(Exception):
    pass


def test_a_runner_waits_for_whoever_has_not_sent_its_part() -> None:
    imports = jobs.imported(jobs.job("mlp"))
    plan = jobs.plan(imports, "a:8 | b:8")
    stage = plan.stages[1]
    program = StageProgram.from_bytes(imports.model.stage(stage.lo, stage.hi).to_bytes())
    names = imports.model.state_names(stage.lo, stage.hi)
    state = {k: v for k, v in imports.model.all_state().items() if k in names}
    pulse, turns = Pulse(), [0]

    def control() -> None:
        turns[0] += 1
        if turns[0] == 3:
            raise _Enough

    runner = StageRunner(
        cluster.assignment(imports, plan, "b"),
        program,
        open_backend("torch", program, state, imports.spec.optimizer, 1.0),
        ScriptedLink(),
        control=control,
        report=lambda _: None,
        keeps=cluster.NoSnapshots(),
        clock=MonotonicClock(),
        resident_mb=lambda: None,
        pulse=pulse,
    )
    with pytest.raises(_Enough):
        runner.run()
    assert pulse.moment.waiting == ("a",)
    assert pulse.moment.patience_s >= FLOOR_S
