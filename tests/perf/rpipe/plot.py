#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws what tests/perf/rpipe/run measured:  plot.py OUT/all PICTURE.svg [NOTE]

Lines of `all` are NAME FORM[.KIND] BYTES FIGURE, several of each; medians are drawn. Three panels, both axes logarithmic: messages of a pair over their
bytes, calls that get bytes, and messages of 8 bytes from one rank to random peers over the number of these.
"""
import os
import sys
from statistics import median

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from curves import Panel, draw, length  # noqa: E402

FLOOR = "memory"


def medians(lines):
    """By name, form, kind and bytes."""
    all_of = {}
    for line in lines:
        name, form, size, figure = line.split()
        form, _, kind = form.partition(".")
        all_of.setdefault((name, form, kind, int(size)), []).append(float(figure))
    return {key: median(figures) for key, figures in all_of.items()}


def label(name, form):
    return f"{form} ({'bare memory' if name == FLOOR else name})"


def panels(found):
    pairs = Panel("messages of two ranks, one way", "bytes", "us", named=length)
    calls = Panel("calls that get bytes", "bytes", "us", named=length)
    peers = Panel("8 bytes from rank 0 to random peers, a message", "peers", "us")
    put = {}
    for (name, form, kind, size), figure in sorted(found.items()):
        if form.startswith("random-"):
            count, _, heap = kind.partition(".")
            if size == 8 and count.isdigit():
                peers.add(label(name, form.removeprefix("random-")) + (f", heap {heap}" if heap else ""), int(count), figure)
        elif form.startswith(("heap", "fragmentation", "pull")) or name.startswith("strait-in-"):
            pass
        elif form.startswith(("get-", "rread")):
            calls.add(label(name, form), size, figure)
        elif form.startswith("put-"):
            # Each MPI's best, so that the legend stays short.
            put[name, size] = min(figure, put.get((name, size), figure))
        else:
            pairs.add(label(name, form), size, figure)
    for (name, size), figure in put.items():
        pairs.add(label(name, "best form of put"), size, figure)
    return [pairs, calls, peers]


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        picture = draw(panels(medians(file)), *sys.argv[3:]) or sys.exit(f"nothing to draw in {sys.argv[1]}")
    with open(sys.argv[2], "w") as file:
        file.write(picture)
