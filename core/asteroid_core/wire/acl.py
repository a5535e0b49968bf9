"""Access rules for mosquitto, made from the topic table: who writes and reads what. ``broker_config/acl`` is this text.

Static patterns only: ``%u`` is the MQTT user name, which for a device is its name. A device writes where it is the
writer or the source, and reads where it is the receiver. Mosquitto applies patterns to every user that has logged in,
so whoever is no device needs denials; those come first, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator

from asteroid_core.wire.topics import CONTROL, DATA, GROUP, TABLE, Role, Topic, pattern

COORDINATOR, OPERATOR = "coordinator", "operator"
"""MQTT users of the coordinator and of people."""


def rules() -> Iterator[str]:
    """Yield the lines of the file."""
    yield "# Access rules for mosquitto, made from the topic table by `make docs`; do not edit."
    yield "# A device's MQTT user name is the device's name (%u)."
    yield ""
    yield f"# The coordinator runs jobs: it writes below {CONTROL}/jobs, commands devices, sends and receives tensors."
    yield f"user {COORDINATOR}"
    yield from _of(Role.COORDINATOR)
    yield f"topic read {CONTROL}/#"
    yield f"topic read {DATA}/+/+/{COORDINATOR}/#"
    yield f"topic write {DATA}/+/+/+/{COORDINATOR}/#"
    yield ""
    yield "# People look at everything that is not a tensor, and ask the coordinator."
    yield f"user {OPERATOR}"
    yield from _of(Role.OPERATOR)
    yield f"topic read {CONTROL}/#"
    yield f"topic deny {DATA}/#"
    yield f"topic deny {CONTROL}/agents/{OPERATOR}/#"
    yield ""
    yield "# Every user, by the name it has logged in with: devices."
    for row in TABLE:
        yield from _patterns(row)


def text() -> str:
    """The whole file."""
    return "\n".join(rules()) + "\n"


def _of(role: Role) -> Iterator[str]:
    """What a fixed user writes."""
    for row in TABLE:
        if row.writer is role and not row.data:
            yield f"topic write {pattern(row.key)}"


def _patterns(row: Topic) -> Iterator[str]:
    """What a device may do with a topic."""
    if row.data:
        yield from _data(row)
        return
    if row.writer is Role.AGENT:
        yield f"pattern write {pattern(row.key, agent='%u')}"
    if row.reader is Role.AGENT:
        yield f"pattern read {pattern(row.key, agent='%u')}"
    elif row.reader is Role.EVERYONE:
        yield f"pattern read {pattern(row.key)}"
    elif row.writer is Role.AGENT:
        yield f"pattern read {pattern(row.key, agent='%u')}"  # an owner watches what stands on its own topics


def _data(row: Topic) -> Iterator[str]:
    if row.key == "multicast":
        yield f"pattern write {DATA}/+/+/{GROUP}/%u/#"
        yield f"pattern read {DATA}/+/+/{GROUP}/#"
        return
    yield f"pattern write {DATA}/+/+/+/%u/#"
    yield f"pattern read {DATA}/+/+/%u/#"


if __name__ == "__main__":
    print(text(), end="")
