"""Logging to stderr: with syslog priorities where a service manager reads it, with the time where a person does."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

_PRIORITY = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class _Journal(logging.Formatter):
    """``<4>text`` for each line, as sd-daemon(3) wants it; the journal adds time and unit itself."""

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_PRIORITY.get(record.levelno, 6)}>"
        return "\n".join(mark + line for line in super().format(record).splitlines())


def setup_logging(form: str, verbose: bool = False, environ: Mapping[str, str] = os.environ) -> None:
    """Send log records to stderr.

    Args:
        form: ``text``, ``journal``, or ``auto``: journal when stderr goes to the journal (``JOURNAL_STREAM``).
        verbose: show debug messages.
        environ: environment.
    """
    journal = form == "journal" or (form == "auto" and "JOURNAL_STREAM" in environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Journal("%(message)s") if journal else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
