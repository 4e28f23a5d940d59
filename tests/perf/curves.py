# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Pictures of curves, both axes logarithmic, as SVG: panels below each other, each with its legend."""
import math
from dataclasses import dataclass, field

# Distinct with the usual kinds of colour blindness too (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#646464", "#000000", "#8e44ad"]
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 60, 250, 30, 45, 820, 420


@dataclass
class Panel:
    """Curves: by name, points of x and y. A name that ends in `*` is drawn dashed, in the colour of the one without it."""
    title: str
    x: str
    y: str
    curves: dict = field(default_factory=dict)
    named: callable = str

    def add(self, name, x, y):
        self.curves.setdefault(name, []).append((x, y))


def length(size):
    """A number of bytes, with its unit."""
    for unit, name in ((20, "MiB"), (10, "KiB")):
        if size >> unit:
            return f"{size / (1 << unit):g} {name}"
    return str(size)


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def panel(p, top):
    xs = sorted({x for points in p.curves.values() for x, _ in points})
    ys = [y for points in p.curves.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    span = math.log2(xs[-1] / xs[0]) or 1

    def at(x, y):
        return (LEFT + width * math.log2(x / xs[0]) / span,
                top + TOP + height * (high - math.log10(y)) / (high - low))

    def text(x, y, what, anchor="start"):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(what)}</text>'

    out = [text(LEFT, top + TOP - 10, p.title)]
    for power in range(low, high + 1):
        y = at(xs[0], 10 ** power)[1]
        out += [f'<path d="M{LEFT} {y:.1f}h{width}" stroke="#ddd"/>', text(LEFT - 6, y + 4, f"{10 ** power:g}", "end")]
    step = -(-len(xs) // 12)
    for x in xs[::step]:
        out.append(text(at(x, 10 ** low)[0], top + HEIGHT - BOTTOM + 16, p.named(x), "middle"))
    out.append(text(LEFT + width / 2, top + HEIGHT - 8, f"{p.x}; {p.y}", "middle"))
    bases = list(dict.fromkeys(name.rstrip("*") for name in p.curves))
    colour = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(bases)}
    for name, points in p.curves.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in sorted(points)))
        dash = ' stroke-dasharray="5 4"' if name.endswith("*") else ""
        stroke = colour[name.rstrip("*")]
        out.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="1.6"{dash}/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{stroke}"/>' for x, y in (at(*point) for point in points)]
    for n, name in enumerate(bases):
        y, x = top + TOP + 14 + n * 18, WIDTH - RIGHT + 12
        out += [f'<path d="M{x} {y - 4}h22" stroke="{colour[name]}" stroke-width="2"/>', text(x + 28, y, name)]
    return out


def draw(panels, note=""):
    """The picture; panels without curves of two points are left out. None if that leaves none."""
    panels = [p for p in panels if any(len(points) > 1 for points in p.curves.values())]
    if not panels:
        return None
    height = HEIGHT * len(panels) + (20 if note else 0)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for n, p in enumerate(panels):
        out += panel(p, n * HEIGHT)
    if note:
        out.append(f'<text x="{LEFT}" y="{height - 6}">{escaped(note)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"
