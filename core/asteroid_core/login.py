"""How a person or a service names a broker and its password: one way for every program of the project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from asteroid_core.errors import InputError

PORT = 1883
TLS_PORT = 8883
CREDENTIAL = "mqtt.password"
"""Name of the systemd credential (``LoadCredential=mqtt.password:...``) that is read before any password file."""


def parse_address(text: str, default_port: int = PORT) -> tuple[str, int, bool]:
    """Split ``host``, ``host:port``, ``[v6]:port``, ``mqtt://host:port`` or ``mqtts://host:port``.

    Returns:
        Host, port, and whether the scheme asks for TLS.

    Raises:
        InputError: no host, or a port that is no port.
    """
    rest, tls = text.strip(), False
    for scheme, port in (("mqtt://", PORT), ("mqtts://", TLS_PORT)):
        if rest.startswith(scheme):
            rest, default_port, tls = rest.removeprefix(scheme).rstrip("/"), port, scheme == "mqtts://"
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port_text = tail.removeprefix(":")
    elif rest.count(":") > 1:
        host, port_text = rest, ""
    else:
        host, _, port_text = rest.partition(":")
    if not host or any(c.isspace() or c == "/" for c in host) or (port_text and not port_text.isdecimal()):
        raise InputError(f"{text!r} is not a broker address.", "Write host or host:port, for example broker.lan:1883.")
    number = int(port_text) if port_text else default_port
    if not 1 <= number <= 65535:
        raise InputError(f"{number} is not a TCP port.", "Write host:port with a port of 1 to 65535.")
    return host, number, tls


def read_password(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """Read the password: systemd's credential first, then the first line of the password file.

    Raises:
        InputError: the file cannot be read.
    """
    if directory := environ.get("CREDENTIALS_DIRECTORY"):
        credential = Path(directory) / CREDENTIAL
        path = credential if credential.is_file() else path
    if path is None:
        return None
    try:
        return path.read_text().split("\n", 1)[0].strip("\r") or None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The password file {path} cannot be read: {error}.",
            "Give a readable file with --password-file; its first line is the password.",
        ) from None
