"""Loss curves as a picture in SVG, without any library."""

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 900, 460, 64, 56, 150, 46
COLOURS = ["#222222", "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"]
POINTS_MAX = 150


def smoothed(curve):
    """(step, mean loss) over pieces of equal length."""
    steps = sorted(step for step in curve if curve[step] is not None)
    size = max(1, len(steps) // POINTS_MAX)
    pieces = [steps[at:at + size] for at in range(0, len(steps), size)]
    return [(piece[-1], sum(curve[step] for step in piece) / len(piece)) for piece in pieces]


def nice_ticks(low, high, count=6):
    span = max(high - low, 1e-9)
    step = 10.0 ** int(f"{span / count:e}".split("e")[1])
    while span / step > count:
        step *= 2
    first = int(low / step) + 1
    return [round(first * step + i * step, 10) for i in range(int((high - first * step) / step) + 1)]


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def picture(curves, title, machine):
    """`curves`: name → {step: loss}."""
    lines = {name: smoothed(curve) for name, curve in curves.items() if curve}
    points = [point for line in lines.values() for point in line] or [(0, 0.0), (1, 1.0)]
    last = max(step for step, _ in points)
    losses = sorted(loss for _, loss in points)
    low, high = losses[0], max(losses[int(len(losses) * 0.985)], losses[0] + 1e-6)  # the start is steep
    low -= 0.03 * (high - low)

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - min(loss, high)) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="24" font-size="16">{escaped(title)}</text>',
           f'<text x="{LEFT}" y="42" fill="#666666">{escaped(machine[:110])}</text>']
    for tick in nice_ticks(low, high):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in nice_ticks(0, last):
        out.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
               f'<text x="{LEFT - 8}" y="{TOP - 4}" text-anchor="end">nats</text>')
    for at, (name, line) in enumerate(lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        row = TOP + 20 * at + 12
        out.append(f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 38}" y1="{row - 4}" y2="{row - 4}" '
                   f'stroke="{colour}" stroke-width="2"/><text x="{WIDTH - RIGHT + 44}" y="{row}">{escaped(name)}</text>')
    return "\n".join(out) + "\n</svg>\n"
