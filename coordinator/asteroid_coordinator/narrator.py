"""Tells the story of a job: states, events and metrics on its topics, events also into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from asteroid_coordinator.job.state import Job
from asteroid_coordinator.recovery import Recoveries
from asteroid_coordinator.store import Store
from asteroid_core.wire import topics
from asteroid_core.wire.messages import Event, JobState, Message, Metrics, encode

Publish = Callable[[str, bytes, bool], None]
"""Topic, payload, retained."""


class Narrator:
    """Publishes what happens to one job (the link publishes retained messages again after a broker has lost them)."""

    def __init__(self, job: str, store: Store, publish: Publish) -> None:
        self._job, self._store, self._publish = job, store, publish
        self._retained: set[str] = set()
        self._recoveries = Recoveries()
        self.state = JobState(job=job, phase="new")

    def keep(self, key: str, message: Message, **fields: str) -> None:
        """Publish a retained message of this job."""
        topic = topics.build(key, job=self._job, **fields)
        self._retained.add(topic)
        self._publish(topic, encode(message), True)

    def adopt(self, devices: Collection[str]) -> None:
        """The broker holds assignments of these devices that an earlier coordinator published."""
        self._retained |= {topics.build("job_assignment", job=self._job, agent=device) for device in devices}

    def drop(self, key: str, **fields: str) -> None:
        """Take a retained message back."""
        topic = topics.build(key, job=self._job, **fields)
        if topic in self._retained:
            self._retained.remove(topic)
            self._publish(topic, b"", True)

    def heard(self, item: object) -> None:
        """Something has come for the job that the story of a recovery may need."""
        self._recoveries.heard(item, time.monotonic())

    def passed(self, job: Job) -> None:
        """A step is done: tell where the job is, and of a recovery that is over with it."""
        self.tell_state(job)
        over = self._recoveries.passed(job, time.monotonic())
        if over is not None:
            self.event("recovered", over.text, over.data())

    def tell_state(self, job: Job, model_file: str = "") -> None:
        """Publish where the job is, if that is new, and keep it in the store."""
        state = JobState(
            job=job.name,
            phase=job.phase,
            generation=job.generation,
            rounds=job.rounds,
            completed=job.completed,
            durable=job.durable,
            durable_generation=job.durable_generation,
            saved=job.saved,
            abandoned=job.abandoned,
            start_round=job.start_round,
            reason=job.reason,
            remedy=job.remedy,
            exit_code=job.exit_code,
            model_file=model_file or self.state.model_file,
        )
        if state != self.state:
            self.state = state
            self._store.set_snapshot(job.name, state.model_dump_json(by_alias=True))
            self.keep("job_state", state)

    def event(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:
        """Write down and publish one line."""
        self._recoveries.said(kind, data or {}, time.monotonic())
        at = time.time()
        body = {"kind": kind, "text": text, "at": at, "data": dict(data or {})}
        seq = self._store.append(self._job, body)
        message = Event(job=self._job, seq=seq, at=at, kind=kind, text=text, data=dict(data or {}))
        self._publish(topics.build("job_events", job=self._job), encode(message), False)

    def metrics(self, message: Metrics) -> None:
        """Publish one round's figures."""
        self._publish(topics.build("job_metrics", job=self._job), encode(message), False)
