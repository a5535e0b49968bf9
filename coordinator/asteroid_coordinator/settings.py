"""Where the broker is and where state lies: command line before environment before settings file before defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from asteroid_core.errors import InputError
from asteroid_core.link.base import Broker
from asteroid_core.login import PORT, TLS_PORT, parse_address, read_password
from asteroid_core.plan import Frozen
from asteroid_core.settings_file import checked, read_settings


class Settings(Frozen):
    """What the command line and the coordinator need to begin.

    Attributes:
        host: name or address of the broker.
        port: its TCP port.
        username: MQTT user, if the broker wants one.
        password_file: file with the password on its first line.
        ca: certificate authority of the broker (PEM); turns TLS on.
        tls: TLS with the system's authorities.
        state_dir: jobs, events, checkpoints and exported models.
        link_bytes_per_s: take this speed of every device's link instead of the measured one.
        broker_bytes_per_s: take this speed of the broker's own link, each direction, instead of the measured one.
    """

    host: str = "localhost"
    port: int = Field(default=PORT, ge=1, le=65535)
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    tls: bool = False
    state_dir: Path = Field(default_factory=lambda: default_state_dir(os.environ))
    link_bytes_per_s: float | None = Field(default=None, gt=0)
    broker_bytes_per_s: float | None = Field(default=None, gt=0)

    @property
    def address(self) -> str:
        """``host:port``, for sentences."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def link_settings(self, *, keepalive: int = 60) -> Broker:
        """Return how a link reaches the broker.

        Raises:
            InputError: the password file cannot be read.
        """
        return Broker(
            host=self.host,
            port=self.port,
            username=self.username,
            password=self.password(),
            ca_file=str(self.ca) if self.ca is not None else None,
            tls=self.tls,
            keepalive=keepalive,
        )

    def password(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Read the password: systemd's credential first, then the password file.

        Raises:
            InputError: the file cannot be read.
        """
        return read_password(self.password_file, environ)


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return ``$ASTEROID_STATE_DIR``, else systemd's state directory, else the user's own one (XDG)."""
    if given := environ.get("ASTEROID_STATE_DIR"):
        return Path(given)
    if service := environ.get("STATE_DIRECTORY"):
        return Path(service.split(":")[0])
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local" / "state")
    return Path(base) / "asteroid"


def default_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Settings files in order of preference; the first one that this user may read counts."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    return (Path(base) / "asteroid" / "cli.toml", Path("/etc/asteroid/coordinator.toml"))


def load_settings(
    *,
    broker: str | None = None,
    username: str | None = None,
    password_file: Path | None = None,
    ca: Path | None = None,
    state_dir: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    files: Sequence[Path] | None = None,
) -> Settings:
    """Put the settings together; what is given here wins over the environment, that over the first settings file.

    Raises:
        InputError: names the file or the value that is wrong.
    """
    raw: dict[str, Any] = {}
    where = "settings"
    for path in default_files(environ) if files is None else files:
        if os.access(path, os.R_OK):  # False, not an error, below a directory that is closed to this user
            raw, where = _read(path), str(path)
            break
    address = broker or environ.get("ASTEROID_BROKER")
    if username is None:
        username = environ.get("ASTEROID_USERNAME") or None
    if password_file is None and environ.get("ASTEROID_PASSWORD_FILE"):
        password_file = Path(environ["ASTEROID_PASSWORD_FILE"])
    if ca is None and environ.get("ASTEROID_CA"):
        ca = Path(environ["ASTEROID_CA"])
    if state_dir is None and ("ASTEROID_STATE_DIR" in environ or "state_dir" not in raw):
        state_dir = default_state_dir(environ)
    given = {"username": username, "password_file": password_file, "ca": ca, "state_dir": state_dir}
    raw.update({key: value for key, value in given.items() if value is not None})
    if address:
        secure = bool(raw.get("ca") or raw.get("tls"))
        raw["host"], raw["port"], tls = parse_address(address, TLS_PORT if secure else PORT)
        if tls:
            raw["tls"] = True
    elif raw.get("ca") or raw.get("tls"):
        raw.setdefault("port", TLS_PORT)
    settings = checked(Settings, raw, where, "See docs/cli.md for the fields of a settings file.")
    if settings.ca is not None and not settings.ca.is_file():
        raise InputError(f"There is no certificate file {settings.ca}.", "Give the broker's CA (PEM) with --ca.")
    return settings


def _read(path: Path) -> dict[str, Any]:
    """Fields of a settings file; those of the table ``[broker]`` may also stand at the top."""
    try:
        raw = read_settings(path, "Mend it or move it away.")
    except FileNotFoundError as error:  # it was there when its rights were looked at
        raise InputError(f"The settings file {path} cannot be read: {error}.", "Mend it or move it away.") from None
    table = raw.pop("broker", {})
    if not isinstance(table, dict):
        raise InputError(
            f"{path}: broker is not a table.", 'Write [broker] and below it host = "broker.lan" and port = 1883.'
        )
    return {**raw, **table}
