"""Asteroid's planner against the baselines: environments A to D, two link speeds, the paper's four models.

One simulator judges all plans. Devices, models and environments are those of the catalog: data-sheet peaks with assumed
efficiencies, environments after Asteroid; nothing is measured. Columns behind ``samples/s`` (of the first planner) say
how many times as fast it is as that planner; below 1 the planner is faster, and the cell is named below the table.

    python bench/comparison.py [--network hub] [--batch 256] [--json FILE] [--markdown]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from asteroid_coordinator.catalog.comparing import PLANNERS, Case, check_planners, compare, facts
from asteroid_coordinator.catalog.environments import DEFAULT_BATCH, ENVIRONMENTS, NETWORKS, NetworkKind, environment
from asteroid_coordinator.catalog.models import PAPER, model
from asteroid_core.errors import InputError

SPEEDS = (100.0, 1000.0)
CONVENTIONAL = ("on-device", "dp", "eddl", "gpipe")
HYBRID = ("dapple", "hetpipe")
PLAN = 4
"""Column of the plan."""
SAME = 1e-6
"""Relative difference of round times up to which two planners are equally fast."""

Cell = dict[str, Any]


def cell(task: tuple[str, str, float, NetworkKind, int, tuple[str, ...]]) -> Cell:
    """One case, in a process of the pool."""
    name, place, mbit, network, batch, planners = task
    begin = time.perf_counter()
    case = Case(model(name), environment(place, mbit, network), batch)
    out = facts(case, compare(case, planners))
    out["seconds"] = time.perf_counter() - begin
    return out


def speed_ups(found: Cell) -> dict[str, float | None]:
    """How many times as fast the first planner is, by planner."""
    return {row["planner"]: row["speed_up_of_first"] for row in found["planners"]}


def where(found: Cell) -> str:
    return f"{found['model']} on {found['environment']} at {found['mbit']:g} Mbit/s"


def headline(cells: Sequence[Cell]) -> list[str]:
    """Sentences about all cells: largest and smallest lead, and every cell in which a baseline is ahead."""
    first = cells[0]["planners"][0]["planner"]
    out = []
    for planner in CONVENTIONAL:
        found = [(value, c) for c in cells if (value := speed_ups(c).get(planner)) is not None]
        if found:
            best, at = max(found, key=lambda item: item[0])
            middle = statistics.median(value for value, _ in found)
            out.append(f"{first} over {planner}: up to {best:.2f}x ({where(at)}), median {middle:.2f}x.")
    leads = []
    for c in cells:
        of = [value for planner in HYBRID if (value := speed_ups(c).get(planner)) is not None]
        if of:
            leads.append((min(of), c))
    if leads:
        low, high = min(leads, key=lambda item: item[0]), max(leads, key=lambda item: item[0])
        middle = statistics.median(value for value, _ in leads)
        out.append(
            f"{first} over the better of {' and '.join(HYBRID)}: {low[0]:.2f}x ({where(low[1])}) to {high[0]:.2f}x "
            f"({where(high[1])}), median {middle:.2f}x."
        )
    behind = [
        f"{planner} is {1 / value:.3f} times as fast: {where(c)}"
        for c in cells
        for planner, value in speed_ups(c).items()
        if value is not None and value < 1 - SAME
    ]
    out.append(f"Cells in which a planner is faster than {first}: {len(behind) or 'none'}.")
    out += [f"  {line}" for line in behind]
    misfits = [
        f"{row['planner']} on {c['environment']}, {c['model']}" for c in cells for row in c["planners"] if row["why"]
    ]
    out.append(f"No plan that fits: {'; '.join(dict.fromkeys(misfits)) or 'never'}.")
    return out


def rows_of(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the table."""
    first, *others = (row["planner"] for row in cells[0]["planners"])
    titles = ["model", "env", "Mbit/s", "samples/s", f"plan of {first}", *others]
    rows = []
    for c in cells:
        lead, ups = c["planners"][0], speed_ups(c)
        rate = lead["samples_per_s"]
        shown = [f"{value:.2f}" if (value := ups[planner]) is not None else "-" for planner in others]
        rows.append(
            [
                c["model"],
                c["environment"],
                f"{c['mbit']:g}",
                "-" if rate is None else f"{rate:.0f}" if rate >= 100 else f"{rate:.2f}",
                lead["stages"] or "does not fit",
                *shown,
            ]
        )
    return titles, rows


def as_markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * 2 + ["---:"] * 2 + ["---"] + ["---:"] * (len(titles) - 5), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_text(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """For a terminal of 120 columns, without the plans."""
    rows = [[*line[:PLAN], *line[PLAN + 1 :]] for line in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in rows
    )


def run(tasks: Sequence[tuple[str, str, float, NetworkKind, int, tuple[str, ...]]], processes: int) -> list[Cell]:
    """All cases in order; says on stderr which one is done."""
    out = []
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(cell, tasks), 1):
            print(f"{number}/{len(tasks)} {where(found)}: {found['seconds']:.1f} s", file=sys.stderr, flush=True)
            out.append(found)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PAPER), choices=list(PAPER), metavar="MODEL")
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    parser.add_argument("--mbit", nargs="+", type=float, default=list(SPEEDS), metavar="N")
    parser.add_argument("--planners", nargs="+", default=list(PLANNERS), metavar="NAME", help="first: compared with")
    parser.add_argument("--network", default="direct", choices=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=DEFAULT_BATCH, metavar="N")
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every plan, time and memory figure there")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    args = parser.parse_args()
    if args.batch < 1:
        parser.error("--batch is at least 1")
    try:
        check_planners(args.planners)
        tasks = [
            (name, place, mbit, args.network, args.batch, tuple(args.planners))
            for name in args.models
            for place in args.environments
            for mbit in args.mbit
        ]
        for _, place, mbit, network, *_ in tasks:
            environment(place, mbit, network)
        cells = run(tasks, args.processes)
    except InputError as error:
        parser.error(str(error))
    titles, rows = rows_of(cells)
    print(as_markdown(titles, rows) if args.markdown else as_text(titles, rows))
    print()
    bullet = "- " if args.markdown else ""
    print("\n".join(line if line.startswith(" ") else bullet + line for line in headline(cells)))
    command = shlex.join(["python", "bench/comparison.py", *sys.argv[1:]])
    if args.json is not None:
        document = {"command": command, "headline": headline(cells), "cells": cells}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nRepeat: {command}")


if __name__ == "__main__":
    main()
