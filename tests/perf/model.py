#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws what tests/perf/model prints:  model.py RESULT PICTURE.svg

Nanoseconds for each KiB over the length, both logarithmic, of one agent (drawn through) and of two (dashed).
"""
import sys

from curves import Panel, draw, length

TERMS = ["flush-dirty", "flush-clean", "writeback-dirty", "load-cached", "load-flushed", "kernel-copy", "user-copy", "pin", "fault"]


def read(path):
    panel = Panel("one at a time; dashed: two at once", "length", "ns for each KiB", named=length)
    for line in open(path):
        if line.startswith("#"):
            continue
        term, size, agents, ns = line.split()
        if term in TERMS:
            panel.add(term + ("*" if int(agents) > 1 else ""), int(size), int(ns) * 1024 / int(size))
    return panel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    picture = draw([read(sys.argv[1])]) or sys.exit("nothing to draw: no term has results for two lengths")
    with open(sys.argv[2], "w") as file:
        file.write(picture)
