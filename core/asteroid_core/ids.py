"""Names of devices and jobs: short, lower case, safe in a topic and in a file name."""

from __future__ import annotations

import re
from typing import NewType

from asteroid_core.errors import InputError

DeviceId = NewType("DeviceId", str)
JobId = NewType("JobId", str)

COORDINATOR = DeviceId("coordinator")
"""Source name of the coordinator on data topics; no device may carry it."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
RESERVED = frozenset({"group", "all", "coordinator", "operator", "probe", "viewer"})


def valid_name(text: str) -> bool:
    """Whether ``text`` is made of ``[a-z0-9-]``, at most 63 characters, and starts and ends with a letter or digit."""
    return _NAME.fullmatch(text) is not None


def device_id(text: str) -> DeviceId:
    """Check the name of a device.

    Raises:
        InputError: bad characters, or a reserved word.
    """
    if not valid_name(text):
        raise InputError(
            f"{text!r} is not a device name.",
            "Use 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit.",
        )
    if text in RESERVED:
        raise InputError(f"{text!r} is reserved and cannot be a device name.", "Choose another name in agent.toml.")
    return DeviceId(text)


def job_id(text: str) -> JobId:
    """Check the name of a job.

    Raises:
        InputError: bad characters, or a reserved word.
    """
    if not valid_name(text) or text in RESERVED:
        raise InputError(
            f"{text!r} is not a job name.",
            "Use 1 to 63 of a-z, 0-9 and '-', not 'probe', 'group', 'all', 'coordinator'.",
        )
    return JobId(text)
