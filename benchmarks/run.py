"""All benchmarks: a table, and a file of results with versions and machine.

    python benchmarks/run.py                     all; into benchmarks/results.json
    python benchmarks/run.py --quick             in 5 minutes on 2 cores; into results-quick.json
    python benchmarks/run.py --only first_call   some; into no file
    python benchmarks/run.py --json FILE         into this file

Ratios are what counts: seconds are this machine's, at this moment. Contestants take turns, each measurement in a
process of its own where a cache could help one of them. Exit status 0 whether targets are met or not: the table says.
It is 1 where a measurement failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from suite import BENCHMARKS, HERE, Row


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    about, start, rows = origin(), datetime.datetime.now(), []
    console = Console(stderr=True)
    for name in dict.fromkeys(options.only or BENCHMARKS):
        with console.status(f"{name} ...", spinner="line"):
            for row in BENCHMARKS[name](options.quick):
                rows.append(row)
                console.print(f"{row.what}: {shown(row)}", highlight=False)
    print_table(rows)
    if options.json:
        seconds = round((datetime.datetime.now() - start).total_seconds())
        when = {"at": start.isoformat(timespec="seconds"), "seconds": seconds, "quick": options.quick}
        described = [{**asdict(row), "is_met": row.is_met} for row in rows]
        options.json.write_text(json.dumps({**when, **about, "rows": described}, indent=1) + "\n")
    met, targets = sum(row.is_met is True for row in rows), sum(row.limit is not None for row in rows)
    where = f"; results in {options.json.name}" if options.json else ""
    print(f"{met} of {targets} targets are met{where}")
    return 1 if any(row.failed for row in rows) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; a file that could not be written is refused before half an hour is spent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = f"may be given several times; one of {', '.join(BENCHMARKS)}, which suite.py describes"
    parser.add_argument("--quick", action="store_true", help="fewer layers, models and repeats")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME", help=only)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where the results go")
    options = parser.parse_args(arguments)
    if options.json is None and options.only is None:
        options.json = HERE / ("results-quick.json" if options.quick else "results.json")
    if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json}: expected a file, in a folder that is there")
    if options.json is not None:
        is_new = not options.json.exists()
        try:
            options.json.open("a").close()
            if is_new:
                options.json.unlink()
        except OSError as error:
            parser.error(f"--json {options.json}: cannot be written: {error}")
    return options


def shown(row: Row) -> str:
    return "-" if row.value is None else f"{row.value:.3g}" if row.unit == "ratio" else f"{row.value:.3g} {row.unit}"


def verdict(row: Row) -> str:
    """The target, and whether it is met."""
    limit = "" if row.limit is None else f"<= {row.limit:g}"
    return " ".join(filter(None, [limit, "FAILED" if row.failed else "NOT MET" if row.is_met is False else ""]))


def print_table(rows: Sequence[Row]) -> None:
    table = Table(title="thunder_fx beside others", title_justify="left")
    table.add_column("what", overflow="fold")
    for heading in ("value", "target", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.what, shown(row), verdict(row), row.spread)
    Console(width=80 if not sys.stdout.isatty() else None).print(table)
    for row in rows:
        for said in filter(None, [row.failed and f"FAILED: {row.failed}", row.note]):
            print(textwrap.fill(f"{row.what}: {said}", 80, initial_indent="  ", subsequent_indent="    "))


def origin() -> dict[str, Any]:
    """Which code ran, and on what."""
    from thunder_fx.repro.bundle import hardware, versions

    commit = changed = None
    if shutil.which("git"):
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results*.json")
    return {
        "commit": commit or None,
        "dirty": bool(changed) if commit else None,
        "versions": versions(),
        "machine": hardware(),
    }


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
