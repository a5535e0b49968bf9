"""``asteroid devices``: who is on the broker, what they lend, how they feel, what they work on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.render import device_notes, devices_table
from asteroid_coordinator.cli.session import found_coordinator, on_broker
from asteroid_coordinator.client import DEVICE_TOPICS, Client, Heard
from asteroid_coordinator.cluster.registry import Registry
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.ids import device_id
from asteroid_core.wire.messages import AgentInfo, AgentStatus, Telemetry, WorkerStatus

EXAMPLES = (
    ("asteroid devices", "once"),
    ("asteroid devices --watch", "until Ctrl-C"),
    ("asteroid devices drain pi-a", "hand its work over, then end its agent"),
    ("asteroid devices --json | jq -r '.[] | select(.present) | .name'", "names of those that can train"),
)
RETAINED_S = 1.0
"""Retained messages arrive within a round trip; who has said nothing by then is not there."""
TELEMETRY_S = 6.0
"""Devices send telemetry every 5 s; one interval and a little."""
LEAVE_S = 60.0
"""A device gives its jobs 30 s, then its worker 5 s."""
WORKING = frozenset({"starting", "loading", "ready", "running", "paused"})


class Roster:
    """All devices as their messages tell."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.jobs: dict[str, str] = {}

    def take(self, heard: Heard) -> None:
        """Fold a message in; a message about another device than its topic names is not believed."""
        message = heard.message
        if getattr(message, "agent", None) != heard.fields.get("agent"):
            return
        if isinstance(message, AgentStatus):
            self.registry.status(message)
        elif isinstance(message, AgentInfo):
            self.registry.info(message)
        elif isinstance(message, Telemetry):
            self.registry.telemetry(message)
        elif isinstance(message, WorkerStatus):
            if message.state in WORKING:
                self.jobs[message.agent] = message.job
            elif self.jobs.get(message.agent) == message.job:
                del self.jobs[message.agent]

    @property
    def complete(self) -> bool:
        """Whether every device that is there has sent telemetry."""
        return all(device.telemetry is not None for device in self.registry.present())

    def picture(self) -> RenderableType:
        """The table, and a sentence for each device that needs one."""
        known = [self.registry.devices[name] for name in sorted(self.registry.devices)]
        ages = {d.name: d.telemetry.uptime_s if d.telemetry else None for d in known}
        notes = [Text(note, style="yellow") for note in device_notes(known)]
        return Group(devices_table(known, self.jobs, ages), *notes)

    def facts(self) -> list[dict[str, Any]]:
        """The same for programs."""
        out = []
        for name in sorted(self.registry.devices):
            device = self.registry.devices[name]
            out.append(
                {
                    "name": name,
                    "state": device.status.state if device.status else "unknown",
                    "present": device.present,
                    "reason": device.status.reason if device.status else "",
                    "protocol": device.status.protocol if device.status else None,
                    "job": self.jobs.get(name, ""),
                    "info": device.info.model_dump(mode="json") if device.info else None,
                    "telemetry": device.telemetry.model_dump(mode="json") if device.telemetry else None,
                    "notes": device_notes([device]),
                }
            )
        return out


def collect(client: Client, seconds: float = TELEMETRY_S) -> Roster:
    """Listen until every device has sent telemetry, at most ``seconds``."""
    roster, start = Roster(), time.monotonic()
    client.subscribe(*DEVICE_TOPICS)
    for heard in client.follow(min(RETAINED_S, seconds)):
        roster.take(heard)
    while roster.registry.devices and not roster.complete:
        left = seconds - (time.monotonic() - start)
        if left <= 0:
            break
        for heard in client.follow(min(0.25, left)):
            roster.take(heard)
    return roster


def devices(
    ui: Ui,
    action: Annotated[
        str | None, typer.Argument(metavar="[drain", help="Let a device leave.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME]", help="Which one.", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table up to date until Ctrl-C.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for telemetry.")
    ] = TELEMETRY_S,
) -> None:
    """Show the devices on the broker, or let one leave.

    AGE is how long a device has been up; MEMORY and CORES are what its owner lends. `drain` is for a device that shall
    be switched off: running jobs are planned without it, it hands its part of the model over, then its agent ends.
    """
    if action is not None:
        _drain(ui, action, name, wait)
        return
    with on_broker(ui) as client:
        roster = collect(client, 0.5 if watch else wait)
        if watch and not ui.json:
            _watch(ui, client, roster)
            return
    if ui.json:
        ui.data(roster.facts())
    elif roster.registry.devices:
        ui.show(roster.picture())
    else:
        ui.say(
            f"No device has shown up on the broker at {ui.settings.address}. "
            "Start asteroid-agent on one and point it at this broker, or try `asteroid demo`."
        )


def _drain(ui: Ui, action: str, name: str | None, wait: float) -> None:
    if action != "drain" or name is None:
        raise InputError(f"{action!r} is not something to do with devices.", "Use: asteroid devices drain NAME")
    device = device_id(name)
    with found_coordinator(ui, "Nobody can take its work over") as session:
        client = session.client
        client.subscribe("agent_status")
        jobs = client.request("drain", device=device).data.get("jobs", [])
        ui.say(f"{device} leaves{'; ' + ', '.join(jobs) + ' goes on without it' if jobs else ''}.")
        deadline = time.monotonic() + max(wait, LEAVE_S)
        while time.monotonic() < deadline:
            for heard in client.follow(0.5):
                status = heard.message
                if isinstance(status, AgentStatus) and status.agent == device and status.state in ("offline", "lost"):
                    ui.result({"device": device, "state": status.state, "jobs": jobs}, device)
                    ui.say(f"{device} is {status.state}. It can be switched off.")
                    return
    raise AsteroidError(f"{device} has not left within {max(wait, LEAVE_S):.0f} s.", "Look at: asteroid devices")


def _watch(ui: Ui, client: Client, roster: Roster) -> None:
    with _screen(ui, roster) as live:
        try:
            while True:
                for heard in client.follow(1.0):
                    roster.take(heard)
                live.update(roster.picture(), refresh=True)
        except KeyboardInterrupt:
            return


@contextmanager
def _screen(ui: Ui, roster: Roster) -> Iterator[Live]:
    with Live(roster.picture(), console=ui.out, auto_refresh=False) as live:
        yield live
