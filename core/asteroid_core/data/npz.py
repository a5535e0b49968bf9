"""Maps arrays of .npy and .npz files into memory; nothing in them is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from asteroid_core.data.source import Array
from asteroid_core.errors import InputError

_LOCAL_HEADER = 30
_LOCAL_MAGIC = b"PK\x03\x04"
_DAMAGE = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def load_npy(path: Path) -> Array:
    """Map a .npy file.

    Raises:
        InputError: not an array, or one of Python objects.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is not a .npy file.", "Write it with numpy.save; archives must end in .npz.")
    return array


def load_npz(path: Path, keys: tuple[str, ...]) -> tuple[list[Array], list[str]]:
    """Return some arrays of an archive, and the keys of those that had to be read into memory.

    Members that ``numpy.savez`` wrote are mapped; those of ``numpy.savez_compressed`` cannot be.

    Raises:
        InputError: not an archive, a key that it has not, or an array of Python objects.
    """
    arrays: list[Array] = []
    read: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            have = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for key in keys:
                if key not in have:
                    raise InputError(
                        f"{path} has no array {key!r}; it has {', '.join(sorted(have)) or 'none'}.",
                        "Name them in data.options: x for the inputs, y for the targets.",
                    )
                info = have[key]
                if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                    arrays.append(_map_member(path, file, info))
                else:
                    with archive.open(info) as member:
                        arrays.append(np.lib.format.read_array(member, allow_pickle=False))
                    read.append(key)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None
    return arrays, read


def _map_member(path: Path, file: IO[bytes], info: zipfile.ZipInfo) -> Array:
    """Map a stored member: its bytes lie in the archive as they are, behind a header of their own."""
    file.seek(info.header_offset)
    head = file.read(_LOCAL_HEADER)
    if len(head) < _LOCAL_HEADER or head[:4] != _LOCAL_MAGIC:
        raise ValueError("the archive's directory does not fit its contents")
    names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    file.seek(info.header_offset + _LOCAL_HEADER + names)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{info.filename} has array format {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} is an array of Python objects")
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if size == 0:
        return np.zeros(shape, dtype=dtype)
    if file.tell() + size > path.stat().st_size:
        raise ValueError(f"{info.filename} ends too early")
    return np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order="F" if fortran else "C")


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"There is no data file {path}.", "Check data.source in the job file.")
    return InputError(
        f"{path} cannot be read as arrays: {error}.",
        "Write it with numpy.save or numpy.savez, of numbers (Python objects are not read).",
    )
