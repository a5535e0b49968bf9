"""From ``[data]`` of a job file to a source."""

from __future__ import annotations

import re
from pathlib import Path

from asteroid_core.data.arrays import open_arrays
from asteroid_core.data.dataset import open_dataset
from asteroid_core.data.digits import Digits
from asteroid_core.data.images import ImageFolder
from asteroid_core.data.options import Options
from asteroid_core.data.source import Source
from asteroid_core.data.text import Text
from asteroid_core.errors import InputError
from asteroid_core.spec import DataSpec

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def open_source(spec: DataSpec, *, seed: int = 0, dtype: str = "float32") -> Source:
    """Open a data set: ``digits``, ``module:function``, .npz/.npy, a folder of pictures, or any other file as text.

    Args:
        spec: what the job says.
        seed: of the job; decides masks.
        dtype: ``float32`` or ``float64``; every source delivers its floats in it.

    Raises:
        InputError: there is no such data, or it cannot be trained on; one sentence that says where.
    """
    name = spec.source
    options = Options(spec.options, name)
    if name == "digits":
        return Digits(options, dtype)
    path = Path(name).expanduser()
    if not path.exists() and _FUNCTION.fullmatch(name):
        return open_dataset(name, spec.options, dtype)
    if not path.exists():
        raise InputError(
            f"There is no data {name!r}.",
            "Give 'digits', a file (.npz, .npy, text), a folder of pictures, or package.module:function.",
        )
    if path.is_dir():
        return ImageFolder(path, options, dtype)
    if path.suffix in (".npz", ".npy"):
        return open_arrays(path, options, dtype)
    return Text(path, options, seed)
