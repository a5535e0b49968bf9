"""Writes safetensors files: streamed, hashed on their way, synced; and says what a disk does as a sentence."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from asteroid_core.errors import AsteroidError
from asteroid_core.plan import Frozen
from asteroid_core.wire.safe import bytes_of, layout

Array = npt.NDArray[np.generic]
Tensors = Mapping[str, Array]

PARTIAL = ".partial-"
"""What is half written begins with this."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileEntry(Frozen):
    """One file of a checkpoint."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


def write_tensors(
    path: Path, tensors: Tensors, bfloat16: Collection[str] = (), meta: Mapping[str, str] | None = None
) -> FileEntry:
    """Write and sync a safetensors file, hashing it on its way; no tensor is copied.

    Raises:
        OSError: the disk does not take it.
        AsteroidError: a tensor of a type that the format does not have.
    """
    head, order = layout(tensors, bfloat16, meta)
    return write_file(path, head, *(bytes_of(tensors[name]) for name in order))


def write_file(path: Path, *blocks: bytes | memoryview) -> FileEntry:
    """Write and sync a file; return its size and hash."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for block in blocks:
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size=size, sha256=digest.hexdigest())


def sync_dir(path: Path) -> None:
    """Make what was renamed into a directory outlast a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def on_disk(directory: Path, what: str, size: int) -> Iterator[None]:
    """Say what the disk does as a sentence, and remove what was half written.

    Args:
        directory: where something is written.
        what: names it.
        size: its bytes.

    Raises:
        AsteroidError: the disk is full, or does not take it.
    """
    try:
        yield
    except OSError as error:
        for path in directory.glob(f"{PARTIAL}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if error.errno in _FULL:
            needs = f"it needs {max(1, size >> 20)} MB below {directory}"
            raise AsteroidError(
                f"The disk is full: {what[0].lower()}{what[1:]} was not written; {needs}.",
                "Free some space; what was written before is still there.",
            ) from None
        raise AsteroidError(
            f"{what} cannot be written to {directory}: {error.strerror or error}.", "Check the disk and permissions."
        ) from None
