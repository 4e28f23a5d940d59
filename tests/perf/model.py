#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Draws what tests/perf/model prints:  model.py RESULT PICTURE.svg

Nanoseconds for each KiB over the length, both logarithmic, of one agent (drawn through) and of two (dashed).
"""
import math
import sys

COLOURS = {"flush-dirty": "#c0392b", "flush-clean": "#e67e22", "writeback-dirty": "#8e44ad", "load-cached": "#7f8c8d",
           "load-flushed": "#2c3e50", "kernel-copy": "#2980b9", "user-copy": "#16a085", "pin": "#27ae60", "fault": "#d4ac0d"}
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 60, 150, 20, 45, 720, 420


def read(path):
    lines = {}
    for line in open(path):
        if line.startswith("#"):
            continue
        term, size, agents, ns = line.split()
        if term in COLOURS:
            lines.setdefault((term, int(agents)), []).append((int(size), int(ns) * 1024 / int(size)))
    return lines


def draw(lines):
    sizes = sorted({x for points in lines.values() for x, _ in points})
    values = [y for points in lines.values() for _, y in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x, y):
        across = math.log2(x / sizes[0]) / math.log2(sizes[-1] / sizes[0])
        return LEFT + width * across, TOP + height * (high - math.log10(y)) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(low, high + 1):
        y = at(sizes[0], 10 ** power)[1]
        out.append(f'<path d="M{LEFT} {y:.1f}h{width}" stroke="#ddd"/><text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10 ** power:g}</text>')
    for size in sizes:
        x = at(size, 10 ** low)[0]
        name = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{name}</text>')
    out.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 8}" text-anchor="middle">length; ns for each KiB</text>')
    for (term, agents), points in lines.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in sorted(points)))
        dash = ' stroke-dasharray="5 4"' if agents > 1 else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[term]}" stroke-width="1.6"{dash}/>')
    for n, (term, colour) in enumerate(COLOURS.items()):
        y = TOP + 14 + n * 18
        out.append(f'<path d="M{WIDTH - RIGHT + 12} {y - 4}h22" stroke="{colour}" stroke-width="2"/><text x="{WIDTH - RIGHT + 40}" y="{y}">{term}</text>')
    out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 14 + len(COLOURS) * 18}">dashed: two at once</text></svg>')
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], "w") as picture:
        picture.write(draw(read(sys.argv[1])))
