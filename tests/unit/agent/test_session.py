"""A worker loads only what the assignment names, from the coordinator, made of operators that it knows."""

from __future__ import annotations

import hashlib
import json

import pytest
from safetensors.numpy import save
from tests.support import cluster, jobs
from tests.support.worker import ScriptedLink, ScriptedShell, Waiting

from asteroid_agent.worker.config import MqttConfig, WorkerConfig
from asteroid_agent.worker.pulse import Pulse
from asteroid_agent.worker.session import Session
from asteroid_core.clock import MonotonicClock
from asteroid_core.errors import AsteroidError, ProgramError, WireError
from asteroid_core.held import Source
from asteroid_core.wire.messages import encode
from asteroid_core.wire.tensor import Kind, Tag
from asteroid_core.wire.topics import build

CONFIG = WorkerConfig(agent="a", job="test", session="s1", mqtt=MqttConfig(host="nowhere"), cores=1, budget_mb=1000)


def _prepared(change: str = "") -> tuple[Session, ScriptedLink, ScriptedShell, bytes, bytes]:
    """A session that has an assignment for a whole model, and the bytes that it should get."""
    imports = jobs.imported(jobs.job("mlp"))
    program = imports.model.stage(0, len(imports.model.layers)).to_bytes()
    if change:
        raw = json.loads(program)
        row = next(i for i, node in enumerate(raw["nodes"]) if str(node[1]).startswith("aten.linear"))
        raw["nodes"][row][1] = change
        program = json.dumps(raw).encode()
    state = save(dict(imports.model.all_state()))
    plan = jobs.plan(imports, "a:8")
    told = cluster.assignment(imports, plan, "a").model_copy(
        update={
            "session": "s1",
            "program_sha256": hashlib.sha256(program).hexdigest(),
            "program_bytes": len(program),
            "sources": (Source(device="coordinator", lo=0, hi=plan.layers),),
        }
    )
    link, shell = ScriptedLink(), ScriptedShell()
    shell.control.append((build("job_assignment", job="test", agent="a"), encode(told)))
    return Session(CONFIG, link, shell, MonotonicClock(), lambda: None, Pulse()), link, shell, program, state


def _fails(session: Session) -> AsteroidError:
    with pytest.raises(AsteroidError) as caught:
        session.run()
    assert caught.value.remedy
    return caught.value


def test_the_right_program_makes_it_ready() -> None:
    session, link, shell, program, state = _prepared()
    link.put("coordinator", Tag(Kind.PROGRAM, 1), program)
    link.put("coordinator", Tag(Kind.STATE, 1), state)
    with pytest.raises(Waiting):
        session.run()
    assert [word[0] for word in shell.told] == ["starting", "loading", "ready"]
    assert link.generation == 1
    assert link.senders == {"a", "coordinator"}


def test_a_program_with_another_hash_is_refused() -> None:
    session, link, _, program, _ = _prepared()
    link.put("coordinator", Tag(Kind.PROGRAM, 1), program[:-1] + b" ")
    error = _fails(session)
    assert isinstance(error, ProgramError)
    assert "SHA-256" in error.what


def test_a_program_from_another_sender_is_refused() -> None:
    session, link, _, program, _ = _prepared()
    link.put("b", Tag(Kind.PROGRAM, 1), program)
    error = _fails(session)
    assert isinstance(error, WireError)
    assert error.what.startswith("b sent a program")


@pytest.mark.parametrize("operator", ["aten.from_file.default", "aten.set_.source_Storage", "python.eval", "os.system"])
def test_a_foreign_operator_is_refused_by_name(operator: str) -> None:
    session, link, shell, program, state = _prepared(operator)
    link.put("coordinator", Tag(Kind.PROGRAM, 1), program)
    link.put("coordinator", Tag(Kind.STATE, 1), state)
    error = _fails(session)
    assert isinstance(error, ProgramError)
    assert error.exit_code == 2
    assert operator in error.what
    assert "ready" not in [word[0] for word in shell.told]


def test_an_assignment_of_another_session_is_not_taken() -> None:
    session, _, shell, _, _ = _prepared()
    topic, payload = shell.control.popleft()
    shell.control.append((topic, payload.replace(b'"session":"s1"', b'"session":"s0"')))
    with pytest.raises(Waiting):
        session.run()
    assert [word[0] for word in shell.told] == ["starting"]
