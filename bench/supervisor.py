"""What an idle supervisor costs: resident memory, and part of one core, over a minute.

python bench/supervisor.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from tests.support.site import site  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, site(Path(directory), ("idle",)) as made:
        process = psutil.Process(made.agents["idle"].pid)
        time.sleep(5)  # its start is not idleness
        before, begin = process.cpu_times(), time.monotonic()
        time.sleep(given.seconds)
        after, wall = process.cpu_times(), time.monotonic() - begin
        used = (after.user + after.system - before.user - before.system) / wall
        resident = process.memory_info().rss / 1e6
    print(
        f"idle supervisor: {resident:.1f} MB resident (wanted at most 45), {used * 100:.2f} % of a core (at most 0.5)"
    )
    print(f"repeat: python bench/supervisor.py --seconds {given.seconds:g}")


if __name__ == "__main__":
    main()
