"""A pipe that ends another thread's ``select``: the one way into a link's thread."""

from __future__ import annotations

import os
import select
import threading


class Waker:
    """Readable while somebody wants attention; ``wake`` may be called by any thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        # Without it a late wake could write to a file that took the number of the closed pipe.
        self._guard = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """The end to select on."""
        return self._read

    def wake(self) -> None:
        """Make it readable."""
        with self._guard:
            if self._closed:
                return
            try:
                os.write(self._write, b"\0")
            except BlockingIOError:
                return  # the pipe is full, so it is readable already

    def drain(self) -> None:
        """Make it unreadable again."""
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            return

    def wait(self, timeout: float) -> None:
        """Wait until woken or for ``timeout`` seconds."""
        select.select([self._read], [], [], max(timeout, 0.0))
        self.drain()

    def close(self) -> None:
        """Free the pipe."""
        with self._guard:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
