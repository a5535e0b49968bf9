"""What the owner of a device decides: its name, its broker, what it lends (command line, environment, file)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from asteroid_core.errors import InputError
from asteroid_core.ids import device_id
from asteroid_core.link.base import Broker
from asteroid_core.login import PORT, TLS_PORT, parse_address, read_password
from asteroid_core.plan import Frozen
from asteroid_core.settings_file import checked, read_settings

FILE = Path("/etc/asteroid/agent.toml")
LogFormat = Literal["auto", "text", "journal"]


class BrokerSettings(Frozen):
    """Table ``[broker]``.

    Attributes:
        host: name or address.
        port: TCP port; 8883 with TLS unless given.
        username: MQTT user; with the production access rules it is the device's name.
        password_file: file with the password on its first line.
        ca: certificate authority of the broker (PEM); turns TLS on.
        tls: TLS with the system's authorities.
    """

    host: str = "localhost"
    port: int = Field(default=PORT, ge=1, le=65535)
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    tls: bool = False


class Lend(Frozen):
    """Table ``[lend]``: what the owner lends; what is left out is measured.

    Attributes:
        cores: processor cores, may be a fraction.
        memory_mb: memory of a worker.
        scratch_dir: directory for temporary files.
        scratch_mb: room in it.
    """

    cores: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    scratch_dir: Path | None = None
    scratch_mb: int = Field(default=0, ge=0)


class Settings(Frozen):
    """Everything an agent is told.

    Attributes:
        name: of the device on the broker.
        broker: where the broker is.
        lend: what the owner lends.
        telemetry_s: seconds between two telemetry messages.
        leave_s: seconds that a job has to do without this device when the agent is stopped.
        grace_s: seconds that a worker has to end by itself.
        log_format: ``text`` with the time, ``journal`` with priorities, ``auto`` by where stderr goes.
        verbose: show debug messages.
    """

    name: str
    broker: BrokerSettings = BrokerSettings()
    lend: Lend = Lend()
    telemetry_s: float = Field(default=5.0, ge=0.1)
    leave_s: float = Field(default=30.0, ge=0)
    grace_s: float = Field(default=5.0, ge=0)
    log_format: LogFormat = "auto"
    verbose: bool = False

    def link_settings(self, environ: Mapping[str, str] = os.environ) -> Broker:
        """Return how a link reaches the broker.

        Raises:
            InputError: the password file cannot be read.
        """
        broker = self.broker
        return Broker(
            broker.host,
            broker.port,
            broker.username,
            read_password(broker.password_file, environ),
            ca_file=str(broker.ca) if broker.ca is not None else None,
            tls=broker.tls,
        )


def load_settings(
    file: Path | None, given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, host: str | None = None
) -> Settings:
    """Put the settings together.

    Args:
        file: settings file; None takes ``/etc/asteroid/agent.toml`` if it is there.
        given: values of the command line that were given: ``name``, ``broker`` (an address), ``username``,
            ``password_file``, ``ca``, ``cores``, ``memory_mb``, ``log_format``, ``verbose``.
        environ: ``ASTEROID_BROKER``, ``ASTEROID_NAME`` and the credentials directory.
        host: name of this machine, the device's name if none is given.

    Raises:
        InputError: names the file or the value that is wrong.
    """
    raw = _read(file if file is not None else FILE, must=file is not None)
    where = str(file or FILE) if raw else "settings"
    for table in ("broker", "lend"):
        if not isinstance(raw.setdefault(table, {}), dict):
            raise InputError(f"{where}: {table} is not a table.", f"Write [{table}] and its fields below it.")
    broker, lend = raw["broker"], raw["lend"]
    given = {key: value for key, value in given.items() if value is not None}
    for key in ("username", "password_file", "ca"):
        if key in given:
            broker[key] = given[key]
    if "ca" in broker or broker.get("tls"):
        broker.setdefault("port", TLS_PORT)
    if address := given.get("broker") or environ.get("ASTEROID_BROKER"):
        secure = bool(broker.get("ca") or broker.get("tls"))
        broker["host"], broker["port"], tls = parse_address(address, TLS_PORT if secure else PORT)
        if tls:
            broker["tls"] = True
    for key in ("cores", "memory_mb"):
        if key in given:
            lend[key] = given[key]
    for key in ("log_format", "verbose", "telemetry_s"):
        if key in given:
            raw[key] = given[key]
    raw["name"] = given.get("name") or environ.get("ASTEROID_NAME") or raw.get("name") or _host_name(host)
    settings = checked(Settings, raw, where, "systemd/agent.toml.example shows every field.")
    device_id(settings.name)
    if settings.broker.ca is not None and not settings.broker.ca.is_file():
        raise InputError(f"There is no certificate file {settings.broker.ca}.", "Give the broker's CA (PEM).")
    return settings


def _host_name(host: str | None) -> str:
    """The machine's name without its domain, in the letters that a device's name may have."""
    name = (host if host is not None else socket.gethostname()).split(".")[0].lower()
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in name).strip("-") or "device"


def _read(path: Path, must: bool) -> dict[str, Any]:
    try:
        return read_settings(path, "Mend it or its permissions.")
    except FileNotFoundError:
        if not must:
            return {}
        raise InputError(f"There is no settings file {path}.", "systemd/agent.toml.example is one to copy.") from None
