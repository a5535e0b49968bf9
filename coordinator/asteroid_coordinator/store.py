"""What must outlive the coordinator: jobs, their events and last state, and measured profiles, in one SQLite file.

Topics are only a cache of this. One coordinator writes (a lock file sees to that); anybody may read meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.ids import job_id

SCHEMA = 2
"""Version of the tables; written into the file."""

_TABLES = """
CREATE TABLE jobs (
    job TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, created REAL NOT NULL, spec TEXT NOT NULL
);
CREATE TABLE events (
    job TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE, seq INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) WITHOUT ROWID;
CREATE TABLE snapshots (job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, body TEXT NOT NULL);
CREATE TABLE profiles (
    device TEXT NOT NULL, model TEXT NOT NULL, backends TEXT NOT NULL, measured REAL NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (device, model, backends)
);
"""
_RUNS = "CREATE TABLE runs (job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, body TEXT NOT NULL);"
"""Since version 2."""


@dataclass(frozen=True)
class StateDir:
    """Where everything lies below the state directory."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "asteroid.sqlite3"

    @property
    def lock(self) -> Path:
        """Held by the coordinator that uses the directory; has its process id."""
        return self.root / "lock"

    def job(self, job: str) -> Path:
        """Files of a job: checkpoints and the exported model."""
        return self.root / "jobs" / job_id(job)


@dataclass(frozen=True)
class StoredEvent:
    """One line of a job's story; ``seq`` counts from 1 in each job."""

    seq: int
    body: dict[str, Any]


class Store:
    """The store of one state directory; may be used by several threads.

    Args:
        root: state directory; made if it does not exist.
        read_only: do not take the lock, and write nothing; for looking on while a coordinator runs.

    Raises:
        InputError: another coordinator uses the directory, it cannot be read or written, or a newer version wrote it.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.layout = StateDir(root)
        self._mutex = threading.RLock()
        self._unkept: dict[str, int] = {}
        self._lock_fd: int | None = None
        if not read_only:
            self._lock_fd = _take_lock(self.layout)
        try:
            self._db = self._open(read_only)
        except BaseException:
            self._unlock()
            raise

    def _open(self, read_only: bool) -> sqlite3.Connection:
        path = self.layout.database
        if read_only and not path.is_file():
            raise InputError(f"There is no store in {self.layout.root}.", "Give the coordinator's --state-dir.")
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with self._sentences():
            db = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
            try:
                db.execute("PRAGMA foreign_keys = ON")
                version = int(db.execute("PRAGMA user_version").fetchone()[0])
                if version > SCHEMA:
                    raise InputError(
                        f"{path} was written by a newer Asteroid (schema {version}, this one knows {SCHEMA}).",
                        "Update this machine, or give another --state-dir.",
                    )
                if not read_only:
                    db.execute("PRAGMA journal_mode = WAL")
                    # A power cut may take the last lines of the story, never the file; checkpoints are synced apart.
                    db.execute("PRAGMA synchronous = NORMAL")
                    if version == 0:
                        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} {_RUNS} PRAGMA user_version = {SCHEMA}; COMMIT;")
                    elif version == 1:
                        db.executescript(f"BEGIN IMMEDIATE; {_RUNS} PRAGMA user_version = {SCHEMA}; COMMIT;")
            except BaseException:
                db.close()
                raise
        return db

    def close(self) -> None:
        """Close the file and give the directory free."""
        with self._mutex:
            self._db.close()
            self._unlock()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Jobs

    def create_job(self, job: str, spec: str) -> None:
        """Keep a new job.

        Raises:
            InputError: there is one of that name.
        """
        job_id(job)
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM jobs WHERE job = ?", (job,)).fetchone():
                raise InputError(f"There is a job {job!r} already.", "Choose another name, or: asteroid jobs")
            number = int(db.execute("SELECT coalesce(max(number), 0) + 1 FROM jobs").fetchone()[0])
            db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job, number, time.time(), spec))
            self._unkept.pop(job, None)

    def free_name(self, name: str) -> str:
        """Return ``name``, or with -2, -3, ... behind it, whichever no job has."""
        taken = set(self.jobs())
        if name not in taken:
            return name
        number = 2
        while True:
            end = f"-{number}"
            candidate = name[: 63 - len(end)].rstrip("-") + end
            if candidate not in taken:
                return candidate
            number += 1

    def jobs(self) -> list[str]:
        """Names of the jobs, oldest first."""
        return [str(row[0]) for row in self._rows("SELECT job FROM jobs ORDER BY number")]

    def spec(self, job: str) -> str:
        """The specification of a job as it was given.

        Raises:
            InputError: there is no such job.
        """
        rows = self._rows("SELECT spec FROM jobs WHERE job = ?", (job,))
        if not rows:
            raise InputError(f"There is no job {job!r}.", "asteroid jobs lists them.")
        return str(rows[0][0])

    # Their story

    def append(self, job: str, body: Mapping[str, Any]) -> int:
        """Write one event; return its number. Events of a job that was not created are only numbered."""
        text = json.dumps(body, separators=(",", ":"))
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM jobs WHERE job = ?", (job,)).fetchone():
                self._unkept[job] = self._unkept.get(job, 0) + 1
                return self._unkept[job]
            query = "SELECT coalesce(max(seq), 0) + 1 FROM events WHERE job = ?"
            seq = int(db.execute(query, (job,)).fetchone()[0])
            db.execute("INSERT INTO events VALUES (?, ?, ?)", (job, seq, text))
        return seq

    def events(self, job: str, after: int = 0) -> list[StoredEvent]:
        """The events of a job with a number above ``after``, in order."""
        rows = self._rows("SELECT seq, body FROM events WHERE job = ? AND seq > ? ORDER BY seq", (job, after))
        return [StoredEvent(int(seq), json.loads(body)) for seq, body in rows]

    def set_snapshot(self, job: str, body: str) -> None:
        """Keep where a job is, as a JSON object. Nothing is kept of a job that was not created."""
        self._keep("snapshots", job, body)

    def get_snapshot(self, job: str) -> str | None:
        """Return what ``set_snapshot`` kept last."""
        return self._kept("snapshots", job)

    def set_run(self, job: str, body: str) -> None:
        """Keep what a coordinator needs to take a running job over. Nothing is kept of a job that was not created."""
        self._keep("runs", job, body)

    def get_run(self, job: str) -> str | None:
        """Return what ``set_run`` kept last."""
        return self._kept("runs", job)

    def _keep(self, table: str, job: str, body: str) -> None:
        with self._transaction() as db:
            db.execute(
                f"INSERT INTO {table} SELECT job, ? FROM jobs WHERE job = ? "
                "ON CONFLICT (job) DO UPDATE SET body = excluded.body",
                (body, job),
            )

    def _kept(self, table: str, job: str) -> str | None:
        rows = self._rows(f"SELECT body FROM {table} WHERE job = ?", (job,))
        return str(rows[0][0]) if rows else None

    def state(self, job: str) -> dict[str, Any]:
        """Where a job is: its snapshot as a mapping.

        Raises:
            InputError: there is no such job.
        """
        self.spec(job)
        return _state(job, self.get_snapshot(job))

    def states(self) -> list[dict[str, Any]]:
        """Where all jobs are, oldest first."""
        query = "SELECT job, body FROM jobs LEFT JOIN snapshots USING (job) ORDER BY number"
        return [_state(str(job), body) for job, body in self._rows(query)]

    # Profiles

    def put_profile(self, device: str, model: str, backends: str, body: str) -> None:
        """Keep a measured profile.

        Args:
            device: where it was measured.
            model: hash of what was measured.
            backends: versions that the times depend on.
            body: the profile.
        """
        with self._transaction() as db:
            row = (device, model, backends, time.time(), body)
            db.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?)", row)

    def get_profile(self, device: str, model: str, backends: str) -> str | None:
        """Return a measured profile, if the same model was measured with the same versions."""
        query = "SELECT body FROM profiles WHERE device = ? AND model = ? AND backends = ?"
        rows = self._rows(query, (device, model, backends))
        return str(rows[0][0]) if rows else None

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._mutex, self._sentences():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._sentences():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn what SQLite says into sentences for a person."""
        try:
            yield
        except sqlite3.Error as error:
            raise _explain(error, self.layout) from error

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _state(job: str, body: str | None) -> dict[str, Any]:
    if body is None:
        return {"job": job, "phase": "new"}
    state = json.loads(body)
    return dict(state)


def _take_lock(layout: StateDir) -> int:
    """Lock the directory for this process; the kernel gives it free when the process ends, however it ends."""
    try:
        layout.root.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise InputError(
            f"The state directory {layout.root} cannot be written: {error.strerror}.",
            "Give another --state-dir, or mend its permissions.",
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise InputError(
            f"Another coordinator (process {owner}) uses the state directory {layout.root}.",
            "Send it the job, stop it, or give another --state-dir.",
        ) from None
    except OSError as error:
        os.close(fd)
        raise InputError(
            f"The state directory {layout.root} cannot be locked: {error.strerror}.",
            "Give a --state-dir on a local disk with free space.",
        ) from None
    return fd


def _explain(error: sqlite3.Error, layout: StateDir) -> AsteroidError:
    text, path = str(error), layout.database
    if "full" in text:
        return AsteroidError(f"The disk of {path} is full.", "Free some space; nothing written before is lost.")
    if "readonly" in text:
        return InputError(f"{path} cannot be written.", "Mend its permissions, or give another --state-dir.")
    if "locked" in text:
        return AsteroidError(f"Another process has locked {path}.", "Close what has it open, and try again.")
    if "unable to open" in text:
        return InputError(f"{path} cannot be opened.", "Mend the permissions of its directory.")
    if "closed" in text:
        return AsteroidError("The coordinator's store is closed already.", "Start the coordinator again.")
    if isinstance(error, sqlite3.DatabaseError) and ("not a database" in text or "malformed" in text):
        return InputError(
            f"{path} is damaged: {text}.", "Move it away; checkpoints and models below jobs/ are separate files."
        )
    return AsteroidError(f"The store {path} failed: {text}.", "Check the disk.")
