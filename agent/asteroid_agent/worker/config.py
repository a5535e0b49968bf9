"""What a supervisor tells a worker process at its start: one line of JSON on stdin, never argv or the environment.

Both show up in ``ps`` and ``/proc``, and the line holds the broker's password.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from asteroid_core.spec import DataSpec

Mode = Literal["train", "profile", "inspect"]


class MqttConfig(BaseModel):
    """How the worker reaches the broker; the same login as its supervisor's.

    Attributes:
        host: name or address.
        port: TCP port.
        username: None for an anonymous login.
        password: never shown by ``repr``.
        ca_file: PEM file with the authority that signed the broker's certificate; turns TLS on.
        tls: TLS with the system's authorities.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    port: int = Field(default=1883, ge=1, le=65535)
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    ca_file: str | None = None
    tls: bool = False


class WorkerConfig(BaseModel):
    """One worker: for which job, in which mode, with which part of the device.

    Attributes:
        agent: name of the device.
        job: name of the job.
        mode: train a stage, measure layers, or look at a data set.
        model: what to measure; empty when training.
        session: the coordinator's start that asked for this worker; assignments of another one are not for it.
        generation: the generation in which it was asked for.
        mqtt: the broker.
        cores: processor cores that the owner lends.
        budget_mb: memory that the owner lends.
        scratch_dir: directory that the owner lends; None: none.
        data: what to look at.
        dtype: of its floats.
        seed: of the job.
        log_format: as the supervisor's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    job: str
    mode: Mode = "train"
    model: str = ""
    session: str = ""
    generation: int = 0
    mqtt: MqttConfig
    cores: float = Field(gt=0)
    budget_mb: int = Field(gt=0)
    scratch_dir: str | None = None
    data: DataSpec | None = None
    dtype: str = ""
    seed: int = 0
    log_format: str = "auto"

    def line(self) -> bytes:
        """Return the line that goes down the pipe."""
        return self.model_dump_json().encode() + b"\n"
