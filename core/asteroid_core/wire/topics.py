"""The one table of topics: build and parse names, and derive documentation and broker rules from the same rows.

Two roots (DESIGN: people read the first one, machines the second): ``asteroid/v1`` carries JSON under 16 kB,
``asteroid-data/v1`` carries binary tensors and is never retained. Data topics name the receiver first and the
sender second, so that static broker patterns can say "reads where it is the receiver, writes where it is the sender".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from asteroid_core.errors import InputError

CONTROL = "asteroid/v1"
DATA = "asteroid-data/v1"
GROUP = "group"
"""Stands in the receiver's place of a multicast; a reserved device name, since a wildcard fills a whole level."""


class Role(str, Enum):
    """Who writes or reads a topic."""

    AGENT = "agent"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"
    EVERYONE = "everyone"


@dataclass(frozen=True)
class Topic:
    """One row of the table.

    Attributes:
        key: short name in code.
        template: levels below the root, with ``<fields>``.
        payload: name of the message model in ``wire.messages``, or ``tensor``.
        qos: MQTT quality of service.
        retained: whether the broker keeps the last message.
        writer: who publishes; an agent only where ``<agent>`` or ``<src>`` is its own name.
        reader: who subscribes; an agent only where ``<agent>`` or ``<dst>`` is its own name.
        meaning: one line for people.
        data: whether it is below the data root.
    """

    key: str
    template: str
    payload: str
    qos: int
    retained: bool
    writer: Role
    reader: Role
    meaning: str
    data: bool = False

    @property
    def root(self) -> str:
        """Root of this topic."""
        return DATA if self.data else CONTROL

    @property
    def full(self) -> str:
        """Whole template with its root."""
        return f"{self.root}/{self.template}"


_A, _C, _O, _E = Role.AGENT, Role.COORDINATOR, Role.OPERATOR, Role.EVERYONE

TABLE: tuple[Topic, ...] = (
    Topic("agent_status", "agents/<agent>/status", "AgentStatus", 1, True, _A, _E,
          "birth and last will of a device: init, ready, training, draining, offline or lost, with its connection id"),
    Topic("agent_info", "agents/<agent>/info", "AgentInfo", 1, True, _A, _E,
          "hardware, what the owner lends, backends and versions"),
    Topic("agent_telemetry", "agents/<agent>/telemetry", "Telemetry", 0, False, _A, _E,
          "processor, memory, temperature, power and network, every few seconds; a probe that fails is null"),
    Topic("agent_command", "agents/<agent>/command", "Command", 1, False, _C, _A,
          "profile, inspect, prepare, stop or leave; answered on reply with the same id"),
    Topic("agent_reply", "agents/<agent>/reply", "Reply", 1, False, _A, _C,
          "answer to a command"),
    Topic("agent_worker", "agents/<agent>/worker/<job>", "WorkerStatus", 1, True, _A, _E,
          "birth and last will of the worker process of a job, with its generation"),
    Topic("agent_report", "agents/<agent>/report/<job>", "Report", 1, False, _A, _C,
          "what a worker tells the coordinator: round completed, snapshot kept, stopped for a change, finished"),
    Topic("agent_beat", "agents/<agent>/beat/<job>", "Beat", 0, False, _A, _C,
          "sign of life of a worker, every second: how far it is, whom it waits for, and whether that is late"),
    Topic("agent_profile", "agents/<agent>/profile/<model>", "ProfilePart", 1, False, _A, _C,
          "measured layer times and memory, in numbered parts"),
    Topic("agent_data", "agents/<agent>/data/<job>", "DataInfo", 1, False, _A, _C,
          "what a data set that lies on this device holds: samples, types, shapes"),
    Topic("coordinator_status", "coordinator/status", "CoordinatorStatus", 1, True, _C, _E,
          "birth and last will of the coordinator"),
    Topic("coordinator_request", "coordinator/request/<client>", "Request", 1, False, _O, _C,
          "what the command line asks for: submit, stop, resume, list"),
    Topic("coordinator_answer", "coordinator/answer/<client>", "Answer", 1, False, _C, _O,
          "answer to a request, with the same id"),
    Topic("job_spec", "jobs/<job>/spec", "JobSpecMessage", 1, True, _C, _E,
          "what was asked for"),
    Topic("job_plan", "jobs/<job>/plan", "PlanSummary", 1, True, _C, _E,
          "the plan in force: stages, devices, shares, memory, predicted round time"),
    Topic("job_state", "jobs/<job>/state", "JobState", 1, True, _C, _E,
          "phase, generation, completed and durable round"),
    Topic("job_assignment", "jobs/<job>/assignment/<agent>", "Assignment", 1, True, _C, _A,
          "a device's stage, program hash, routes and start round in a generation"),
    Topic("job_metrics", "jobs/<job>/metrics", "Metrics", 0, False, _C, _E,
          "after each round: loss, samples per second, busy share of each stage"),
    Topic("job_events", "jobs/<job>/events", "Event", 1, False, _C, _E,
          "what happened, one line each"),
    Topic("tensor", "<job>/<generation>/<dst>/<src>/<kind>", "tensor", 1, False, _A, _A,
          "one chunk of a tensor (or of credits) for one receiver: feed, target, act, grad, reduce, state, program, "
          "probe, result, credit, ask, copy", True),
    Topic("multicast", "<job>/<generation>/group/<src>/<stage>/<kind>", "tensor", 1, False, _A, _E,
          "one chunk for every member of a stage (gather) or every worker of the job (vote, stage 'all')", True),
)  # fmt: skip

BY_KEY: Mapping[str, Topic] = {row.key: row for row in TABLE}
_FIELD = re.compile(r"<(\w+)>")
_LEVEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def build(key: str, **fields: str | int) -> str:
    """Return the topic name of a row with its fields filled in.

    Raises:
        InputError: a field is missing or would not be one topic level.
    """
    row = BY_KEY[key]

    def fill(match: re.Match[str]) -> str:
        value = str(fields[match[1]])
        if _LEVEL.fullmatch(value) is None:
            raise InputError(
                f"{value!r} cannot be a level of topic {row.full}.", "Use letters, digits, '-', '_' and '.'."
            )
        return value

    return f"{row.root}/{_FIELD.sub(fill, row.template)}"


def pattern(key: str, **fields: str | int) -> str:
    """Return a subscription filter: given fields are filled in, the others become ``+``."""
    row = BY_KEY[key]
    return f"{row.root}/{_FIELD.sub(lambda m: str(fields.get(m[1], '+')), row.template)}"


_REGEX = [
    (row, re.compile(re.escape(row.full).replace(r"<", "(?P<").replace(">", ">[^/+#]+)")))
    for row in sorted(TABLE, key=lambda r: r.key != "multicast")
]


def parse(name: str) -> tuple[Topic, dict[str, str]] | None:
    """Return the row and the fields of a topic name, or None for a foreign one."""
    found = _parsed(name)
    return (found[0], dict(found[1])) if found is not None else None


@lru_cache(maxsize=1024)
def _parsed(name: str) -> tuple[Topic, tuple[tuple[str, str], ...]] | None:
    """The same, remembered: a pipeline sends thousands of chunks on a few topics."""
    for row, regex in _REGEX:
        if found := regex.fullmatch(name):
            fields = found.groupdict()
            if row.key == "tensor" and fields["dst"] == GROUP:
                continue
            return row, tuple(fields.items())
    return None


def data_filters(job: str, me: str) -> tuple[str, ...]:
    """What a worker subscribes to once, before it says ready: its own tensors and the multicasts of its job."""
    return (f"{DATA}/{job}/+/{me}/#", f"{DATA}/{job}/+/{GROUP}/#")


def documentation() -> Iterator[str]:
    """Yield the lines of the topic table as Markdown (docs/topics.md, ``asteroid topics``)."""
    yield "| topic | payload | QoS | retained | written by | read by | meaning |"
    yield "|---|---|---|---|---|---|---|"
    for row in TABLE:
        keep = "yes" if row.retained else "no"
        yield (
            f"| `{row.full}` | {row.payload} | {row.qos} | {keep} | {row.writer.value} | {row.reader.value} "
            f"| {row.meaning} |"
        )
