"""Checkpoints on disk: safetensors files and a manifest with their hashes, whole or not there at all.

    <job>/checkpoints/round-000120/model.safetensors       weights and buffers under the user's own names
                                   optimizer.safetensors   opt/<param>/<slot>, opt/<counter>
                                   manifest.json           rounds, generation, SHA-256 of each file

A checkpoint is written beside its place and renamed into it, so a crash or a full disk leaves the older ones as they
were. What bit rot or a person has changed is noticed by its hash and passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from asteroid_coordinator.tensorfile import PARTIAL, FileEntry, on_disk, sync_dir, write_file, write_tensors
from asteroid_core.errors import AsteroidError
from asteroid_core.held import OPTIMIZER_PREFIX
from asteroid_core.plan import Frozen

log = logging.getLogger(__name__)

Array = npt.NDArray[np.generic]
Tensors = Mapping[str, Array]

FORMAT = 1
MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"
_REPLACED = ".old"
_BLOCK = 1 << 20


class Manifest(Frozen):
    """What a checkpoint says of itself.

    Attributes:
        format: of this manifest.
        rounds: completed rounds.
        meta: what the writer added (generation, epoch).
        files: by name.
        bfloat16: tensors whose uint16 words are bfloat16 numbers.
    """

    format: int = FORMAT
    rounds: int = Field(ge=0)
    meta: dict[str, str | int | float] = Field(default_factory=dict)
    files: dict[str, FileEntry]
    bfloat16: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were whole when it was found."""

    path: Path
    manifest: Manifest

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return self.manifest.rounds


class Checkpoints:
    """The checkpoints of one job.

    Args:
        job_dir: directory of the job's files.
        keep: how many to keep.
    """

    def __init__(self, job_dir: Path, keep: int = 2) -> None:
        self.directory = job_dir / "checkpoints"
        self._keep = max(1, keep)
        self.damaged: dict[Path, str] = {}
        """what ``latest`` passed over, and why"""

    def write(
        self,
        rounds: int,
        tensors: Tensors,
        meta: Mapping[str, str | int | float] | None = None,
        bfloat16: Collection[str] = (),
    ) -> Checkpoint:
        """Write a checkpoint, then remove those that are too many.

        Args:
            rounds: completed rounds.
            tensors: weights and buffers under the user's names, optimizer state under ``opt/``.
            meta: kept in the manifest.
            bfloat16: names of uint16 tensors that hold bfloat16.

        Raises:
            AsteroidError: the disk is full or cannot be written; older checkpoints are as they were.
        """
        place = self.directory / f"round-{rounds:06d}"
        partial = self.directory / f"{PARTIAL}{place.name}"
        size = sum(t.nbytes for t in tensors.values())
        parts = {
            MODEL: {k: v for k, v in tensors.items() if not k.startswith(OPTIMIZER_PREFIX)},
            OPTIMIZER: {k: v for k, v in tensors.items() if k.startswith(OPTIMIZER_PREFIX)},
        }
        with on_disk(self.directory, f"The checkpoint of round {rounds}", size):
            self._clean()
            partial.mkdir(mode=0o750, parents=True)
            files = {name: write_tensors(partial / name, part) for name, part in parts.items()}
            manifest = Manifest(rounds=rounds, meta=dict(meta or {}), files=files, bfloat16=tuple(sorted(bfloat16)))
            write_file(partial / MANIFEST, manifest.model_dump_json(indent=2).encode())
            sync_dir(partial)
            replaced = place.with_name(place.name + _REPLACED)
            if place.exists():
                # found again by ``latest`` if we die between the two renames
                if replaced.exists():
                    shutil.rmtree(replaced)
                place.rename(replaced)
            partial.rename(place)
            sync_dir(self.directory)
        self.damaged.pop(place, None)
        self.prune(spare=place)
        return Checkpoint(place, manifest)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; what is passed over goes to the log and to ``damaged``."""
        for path in self._found():
            try:
                return _verified(path)
            except AsteroidError as error:
                self.damaged[path] = error.what
                log.warning("%s %s", error.what, "An older checkpoint is used if there is one.")
        return None

    def all(self) -> list[Checkpoint]:
        """Return every whole checkpoint, newest first."""
        out = []
        for path in self._found():
            with contextlib.suppress(AsteroidError):  # this is the question that is asked
                out.append(_verified(path))
        return out

    def read(self, checkpoint: Checkpoint) -> dict[str, Array]:
        """Return all tensors of a checkpoint.

        Raises:
            AsteroidError: it has been damaged or removed since it was found.
        """
        again = _verified(checkpoint.path)
        out: dict[str, Array] = {}
        for name in again.manifest.files:
            out.update(_load(again.path / name))
        return out

    def prune(self, spare: Path | None = None) -> list[Path]:
        """Remove all but the newest ones (never ``spare``); return what was removed."""
        gone: list[Path] = []
        replaced = [p for p in self._found() if p.name.endswith(_REPLACED)]
        whole = [p for p in self._found() if not p.name.endswith(_REPLACED)]
        for path in (*replaced, *whole[self._keep :]):
            stands_in = path.name.endswith(_REPLACED) and not path.with_name(path.name.removesuffix(_REPLACED)).exists()
            if path == spare or stands_in:
                continue
            try:
                shutil.rmtree(path)
            except OSError as error:
                log.warning("The old checkpoint %s cannot be removed: %s.", path, error)
                continue
            gone.append(path)
        return gone

    def _found(self) -> list[Path]:
        """Directories of checkpoints, newest first; one that was being replaced comes after its replacement."""
        out: list[tuple[int, bool, Path]] = []
        if not self.directory.is_dir():
            return []
        for path in self.directory.iterdir():
            number = path.name.removesuffix(_REPLACED).removeprefix("round-")
            if path.name.startswith("round-") and number.isdecimal() and path.is_dir():
                out.append((int(number), not path.name.endswith(_REPLACED), path))
        return [path for _, _, path in sorted(out, reverse=True)]

    def _clean(self) -> None:
        """Remove what a crash left half written."""
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in self.directory.glob(f"{PARTIAL}*"):
            shutil.rmtree(path)


def save_model(tensors: Tensors, path: Path, bfloat16: Collection[str] = ()) -> None:
    """Write a model file in one step: whole, or as it was before.

    Raises:
        AsteroidError: the disk is full or cannot be written.
    """
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with on_disk(path.parent, f"The model file {path.name}", sum(t.nbytes for t in tensors.values())):
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        write_tensors(partial, tensors, bfloat16, {"format": "pt"})
        partial.rename(path)
        sync_dir(path.parent)


def _verified(path: Path) -> Checkpoint:
    """Read the manifest and hash every file.

    Raises:
        AsteroidError: anything is not as it was written.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(raw)
        if manifest.format != FORMAT or set(manifest.files) - {MODEL, OPTIMIZER}:
            raise AsteroidError(f"The checkpoint {path} was written by another version (format {manifest.format}).")
        for name, entry in manifest.files.items():
            file = path / name
            if file.stat().st_size != entry.size or _hash(file) != entry.sha256:
                raise AsteroidError(f"The checkpoint {path} is damaged: {name} is not what was written.")
    except FileNotFoundError as error:
        raise AsteroidError(f"The checkpoint {path} is damaged: {Path(error.filename).name} is missing.") from None
    except OSError as error:
        raise AsteroidError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from None
    except ValidationError:
        raise AsteroidError(f"The checkpoint {path} is damaged: its manifest is not one.") from None
    return Checkpoint(path, manifest)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _load(path: Path) -> dict[str, Array]:
    try:
        loaded: dict[str, Array] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise AsteroidError(f"The checkpoint file {path} cannot be read: {error}.") from None
    return loaded
