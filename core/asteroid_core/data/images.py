"""A folder of pictures, one subfolder a class; decoded when they are needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from asteroid_core.data.options import Options
from asteroid_core.data.source import Array, Field, Indices
from asteroid_core.errors import InputError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


class ImageFolder:
    """Pictures (channels, size, size) from 0 to 1, and the number of their folder in alphabetical order.

    Args:
        path: the folder of folders.
        options: ``size`` (pixels, default 32) and ``channels`` (1 grey, 3 colours; default 3).
        dtype: of the pixels.
    """

    def __init__(self, path: Path, options: Options, dtype: str) -> None:
        self._path, self._dtype = path, dtype
        self._size = options.integer("size", 32, 1, 4096)
        self._mode = {1: "L", 3: "RGB"}.get(channels := options.integer("channels", 3, 1, 3))
        options.done()
        if self._mode is None:
            raise InputError(f"Pictures with {channels} channels do not exist.", "data.options.channels is 1 or 3.")
        try:
            import PIL.Image
        except ImportError:
            raise InputError(
                "A folder of pictures needs pillow.", "Install it: pip install 'asteroid-edge[coordinator]'"
            ) from None
        self._pil = PIL.Image
        self._files, labels, self.names = _scan(path)
        self._labels = np.array(labels, dtype=np.int64)
        self.inputs = (Field(dtype, (channels, self._size, self._size)),)
        self.target = Field("int64", ())
        self.classes: int | None = len(self.names)
        self.vocabulary: int | None = None

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Decode these pictures."""
        images = np.stack([self._decode(self._files[i]) for i in indices])
        return [images], self._labels[indices]

    def _decode(self, path: Path) -> npt.NDArray[np.floating]:
        try:
            with self._pil.open(path) as image:
                small = image.convert(self._mode).resize((self._size, self._size), self._pil.Resampling.BILINEAR)
            pixels = np.asarray(small, dtype=self._dtype) / np.dtype(self._dtype).type(255)
        except (OSError, ValueError, SyntaxError, EOFError, self._pil.DecompressionBombError) as error:
            # pillow says some kinds of damage with a SyntaxError
            raise InputError(f"The picture {path} cannot be decoded: {error}.", "Mend or remove it.") from None
        return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Every picture counts once."""
        return float(len(indices))

    def describe(self) -> str:
        """The data set in one line."""
        sizes = Counter(self._labels.tolist()).values()
        return (
            f"{self._path.name}: {len(self)} pictures as {self.inputs[0]}, {len(self.names)} classes "
            f"of {min(sizes)} to {max(sizes)}"
        )


def _scan(path: Path) -> tuple[list[Path], list[int], list[str]]:
    """Files, class of each, and names of the classes; sorted, so that every machine numbers them alike."""
    try:
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        files: list[Path] = []
        labels: list[int] = []
        for number, folder in enumerate(folders):
            found = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
            if not found:
                raise InputError(
                    f"The folder {folder} has no pictures.", "Remove it, or put pictures of its class in it."
                )
            files += found
            labels += [number] * len(found)
    except OSError as error:
        raise InputError(f"The folder {path} cannot be read: {error}.", "Check the path and its permissions.") from None
    if not folders:
        raise InputError(
            f"The folder {path} has no folders in it.", "Put the pictures of each class in one of its own."
        )
    return files, labels, [p.name for p in folders]
