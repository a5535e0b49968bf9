"""Topics, messages and their page; sentences for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asteroid_coordinator.cli.topics import page
from asteroid_core.errors import InputError, WireError
from asteroid_core.wire import topics
from asteroid_core.wire.messages import MAX_BYTES, AgentStatus, Event, Metrics, decode, encode
from asteroid_core.wire.topics import TABLE, build, data_filters, parse, pattern

DOCS = Path(__file__).resolve().parents[3] / "docs"
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True).filter(lambda n: n != topics.GROUP)


@given(st.sampled_from(TABLE), st.data())
def test_what_is_built_is_parsed(row: topics.Topic, data: st.DataObject) -> None:
    fields = {name: data.draw(NAMES) for name in topics._FIELD.findall(row.template)}
    topic = build(row.key, **fields)
    assert parse(topic) == (row, fields)
    assert topic.startswith(topics.DATA if row.data else topics.CONTROL)
    wanted = pattern(row.key).split("/")
    assert all(w in ("+", h) for w, h in zip(wanted, topic.split("/"), strict=True))


@pytest.mark.parametrize("bad", ["", "a/b", "a+", "#", "a b", "x" * 65, "ä"])
def test_a_field_that_is_no_level_is_refused(bad: str) -> None:
    with pytest.raises(InputError):
        build("agent_status", agent=bad)


@pytest.mark.parametrize(
    "name", ["", "asteroid/v1", "asteroid/v2/agents/a/status", "asteroid/v1/agents/a/b/status", "x"]
)
def test_foreign_topics_are_not_parsed(name: str) -> None:
    assert parse(name) is None


def test_a_worker_hears_its_tensors_and_its_groups() -> None:
    mine, groups = data_filters("job", "pi")
    assert mine == "asteroid-data/v1/job/+/pi/#"
    assert groups == "asteroid-data/v1/job/+/group/#"


def test_the_page_is_made_from_the_table() -> None:
    assert (DOCS / "topics.md").read_text() == page()


def test_messages_survive_the_wire_and_unknown_fields_are_ignored() -> None:
    status = AgentStatus(agent="pi", state="ready", connection="c")
    raw = encode(status)
    assert decode(AgentStatus, raw) == status
    assert decode(AgentStatus, raw[:-1] + b', "from_a_newer_one": 1}') == status
    assert b'"schema":1' in raw


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"agent": "pi"}', b'{"agent": "pi", "state": "odd", "connection": "c"}',
            b"x" * (MAX_BYTES + 1), b"[" * 10_000]
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode(AgentStatus, raw)
    assert "\n" not in str(caught.value)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode(Event(job="j", seq=1, at=0.0, kind="x", text="y" * MAX_BYTES))


def test_measured_figures_are_short_on_the_wire() -> None:
    metrics = Metrics(job="j", round=0, rounds=1, kind="train", loss=1 / 3, busy={"a": 2 / 3})
    assert b'"loss":0.33333,' in encode(metrics)
    assert b'"a":0.66667' in encode(metrics)
