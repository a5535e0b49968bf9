"""``asteroid doctor``: look at everything between this command and the devices; each line says what to do."""

from __future__ import annotations

import queue
import secrets
import time
from dataclasses import asdict

import typer
from rich.text import Text

from asteroid_coordinator.cli import checks
from asteroid_coordinator.cli.checks import Finding
from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.devices import collect
from asteroid_coordinator.cli.session import on_broker
from asteroid_core.errors import BrokerError
from asteroid_core.link.base import Message, Refused, Subscription
from asteroid_core.link.control import ControlLink
from asteroid_core.link.paho_link import PahoTransport
from asteroid_core.wire.messages import CoordinatorStatus
from asteroid_core.wire.topics import Role, build

EXAMPLES = (
    ("asteroid doctor", "why does it not work?"),
    ("asteroid doctor --broker broker.lan --username operator --password-file pw", "with a login"),
)
PROBES = 20
PROBE_BYTES = 4096
"""Larger than one TCP segment of a LAN, as tensors are: this is where Nagle's algorithm waits."""
PROBE_S = 2.0
UNREACHABLE = 2
_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(ui: Ui) -> None:
    """Check broker, login, access rules, coordinator, devices, disk.

    Exit code 0: nothing is wrong (there may be warnings); 1: something is; 2: the broker cannot be used at all.
    """
    report = _Report(ui)
    report.add(checks.versions(), checks.clock(), checks.disk(ui.settings.state_dir))
    reached = checks.network(ui.settings)
    report.add(reached)
    if reached.level == "fail":
        report.end(UNREACHABLE)
    try:
        with on_broker(ui) as client:
            status = client.find_coordinator()
            roster = collect(client, 2.0)
        _broker(ui, report, status)
    except BrokerError as error:
        report.add(Finding("broker", "fail", error.what, error.remedy))
        report.end(UNREACHABLE)
    report.add(checks.coordinator(status, ui.settings), *checks.devices(roster.registry))
    report.end(0)


class _Report:
    """Prints findings as they come, or all at once as JSON."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui
        self._all: list[Finding] = []

    def add(self, *findings: Finding) -> None:
        self._all.extend(findings)
        if self._ui.json:
            return
        for item in findings:
            self._ui.show(
                Text.assemble((f"{item.level:<5}", _STYLE[item.level]), (f"{item.check:<16}", "bold"), item.text)
            )
            if item.remedy and item.level != "ok":
                self._ui.show(Text(f"{'':21}→ {item.remedy}"))

    def end(self, code: int) -> None:
        if self._ui.json:
            self._ui.data([asdict(item) for item in self._all])
        if code or any(item.level == "fail" for item in self._all):
            raise typer.Exit(code or 1)
        raise typer.Exit(0)


def _broker(ui: Ui, report: _Report, status: CoordinatorStatus | None) -> None:
    name = f"doctor-{secrets.token_hex(4)}"
    transport = PahoTransport(ui.settings.link_settings(), f"asteroid-{name}")
    link = ControlLink(transport).open()
    try:
        login = f"as {ui.settings.username}" if ui.settings.username else "without a login"
        tls = ", over TLS" if ui.settings.link_settings().secure else ""
        report.add(
            Finding("broker", "ok", f"speaks MQTT 5, lets us in {login}{tls}"), checks.packet_size(transport.max_packet)
        )
        # Without a coordinator elsewhere, this user has to be allowed to be one.
        roles = {Role.OPERATOR} if status is not None else {Role.OPERATOR, Role.COORDINATOR}
        asked = checks.needed_topics(roles, name)
        refused, came = _self_sent(link, [topic for _, topic in asked])
        echo = build("tensor", job="probe", generation=0, dst=name, src="coordinator", kind="probe")
        if echo_times := _echo(link, echo):
            report.add(checks.round_trip(echo_times, f"{PROBE_BYTES} bytes there and back"))
        else:
            report.add(
                checks.round_trip(_confirmations(link, build("coordinator_request", client=name)), "confirmations")
            )
        missing = [topic for _, topic in asked if topic not in came] if Role.COORDINATOR in roles else []
        report.add(*checks.rights(asked, refused, missing))
    finally:
        link.close()


def _self_sent(link: ControlLink, topics: list[str]) -> tuple[dict[str, str], set[str]]:
    """Send an empty QoS 1 message to each topic, which every reader ignores; what was refused, what came back."""
    link.subscribe(*(Subscription(topic) for topic in topics))
    for topic in topics:
        link.publish(topic, b"", remember=False)
    refused: dict[str, str] = {}
    came: set[str] = set()
    deadline = time.monotonic() + PROBE_S
    while len(came | set(refused)) < len(topics):
        try:
            event = link.events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(event, Refused):
            refused[event.topic] = event.reason
        elif isinstance(event, Message):
            came.add(event.topic)
    return refused, came


def _echo(link: ControlLink, topic: str) -> list[float]:
    """Round trips of a message to ourselves; empty if the access rules do not let it through."""
    link.subscribe(Subscription(topic))
    times: list[float] = []
    for number in range(PROBES):
        payload = number.to_bytes(4, "big") * (PROBE_BYTES // 4)
        start = time.monotonic()
        link.publish(topic, payload, remember=False)
        while True:
            try:
                event = link.events.get(timeout=max(0.0, start + PROBE_S - time.monotonic()))
            except queue.Empty:
                return times
            if isinstance(event, Refused) and event.topic == topic:
                return []
            if isinstance(event, Message) and event.topic == topic and event.payload == payload:
                times.append(time.monotonic() - start)
                break
    return times


def _confirmations(link: ControlLink, topic: str) -> list[float]:
    """Times until the broker has confirmed a message, for a user who may not read what he writes."""
    times = []
    for _ in range(PROBES):
        start = time.monotonic()
        link.publish(topic, b"", remember=False)
        if link.flush(PROBE_S):
            times.append(time.monotonic() - start)
    return times
