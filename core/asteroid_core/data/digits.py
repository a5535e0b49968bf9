"""The 1797 handwritten digits of scikit-learn (8x8 pixels, ten classes), which come with its wheel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asteroid_core.data.options import Options
from asteroid_core.data.source import Array, Field, Indices
from asteroid_core.errors import InputError


class Digits:
    """Images (channels, size, size) from 0 to 1, and their digit.

    Args:
        options: ``size`` (pixels, default 8; more are interpolated) and ``channels`` (the same picture so often).
        dtype: of the pixels.
    """

    def __init__(self, options: Options, dtype: str) -> None:
        self._size = options.integer("size", 8, 8, 512)
        self._channels = options.integer("channels", 1, 1, 4)
        options.done()
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise InputError(
                "The data source 'digits' needs scikit-learn.", "Install it: pip install 'asteroid-edge[coordinator]'"
            ) from None
        raw = load_digits()
        self._images = np.ascontiguousarray(raw.images / 16.0, dtype=dtype)
        self._digits = np.ascontiguousarray(raw.target, dtype=np.int64)
        self.inputs = (Field(dtype, (self._channels, self._size, self._size)),)
        self.target = Field("int64", ())
        self.classes: int | None = 10
        self.vocabulary: int | None = None

    def __len__(self) -> int:
        return len(self._digits)

    def batch(self, indices: Indices, epochs: Indices | None = None) -> tuple[list[Array], Array]:
        """Return images and digits."""
        images = self._images[indices]
        if self._size != images.shape[-1]:
            images = enlarge(images, self._size)
        images = np.repeat(images[:, None], self._channels, axis=1)
        return [images], self._digits[indices]

    def count(self, indices: Indices, epochs: Indices | None = None) -> float:
        """Every digit counts once."""
        return float(len(indices))

    def describe(self) -> str:
        """The data set in one line."""
        shape = "x".join(map(str, self.inputs[0].shape))
        return f"{len(self)} handwritten digits, {shape}, 10 classes"


def enlarge(images: npt.NDArray[np.floating], size: int) -> npt.NDArray[np.floating]:
    """Interpolate square images (n, s, s) linearly to (n, size, size), corner on corner.

    Element by element on purpose: a matrix product may round differently with the number of images, and a sample must
    not depend on the micro-batch that it is in.
    """
    at = np.linspace(0, images.shape[-1] - 1, size)
    low = np.minimum(at.astype(np.int64), images.shape[-1] - 2)
    part = (at - low).astype(images.dtype)
    rows = images[:, low] * (1 - part)[:, None] + images[:, low + 1] * part[:, None]
    out = rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part
    return np.asarray(out, dtype=images.dtype)
