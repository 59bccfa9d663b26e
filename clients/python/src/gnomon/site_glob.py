"""Globs over module names: `*` (also across dots), `?`, `{a,b}`, and `last` within braces.

The same rules as the controller's: `last` is the number of the model's last layer.
"""

from __future__ import annotations

import functools
import re

ALTERNATIVES_MAX = 4096


def glob_error(glob: str) -> str:
    """What is wrong with `glob`, in words; empty when it is fine."""
    if not glob:
        return "an empty glob matches nothing"
    alternatives = 1
    begin = -1
    for i, letter in enumerate(glob):
        if letter == "{":
            if begin >= 0:
                return "braces inside braces"
            begin = i
        elif letter == "}":
            if begin < 0:
                return "a closing brace without an opening one"
            alternatives *= glob.count(",", begin, i) + 1
            if alternatives > ALTERNATIVES_MAX:
                return f"more than {ALTERNATIVES_MAX} alternatives"
            begin = -1
    return "" if begin < 0 else "an opening brace without a closing one"


def site_matches(glob: str, site: str, layers: int) -> bool:
    """Whether the whole name fits. False for a glob with an error."""
    return not glob_error(glob) and _expression(glob, layers).fullmatch(site) is not None


@functools.lru_cache(maxsize=4096)
def _expression(glob: str, layers: int) -> re.Pattern[str]:
    parts = []
    for piece in re.split(r"(\{[^}]*\}|\*|\?)", glob):
        if piece == "*":
            parts.append(".*")
        elif piece == "?":
            parts.append(".")
        elif piece.startswith("{"):
            names = [str(layers - 1) if each == "last" else each for each in piece[1:-1].split(",")]
            parts.append("(?:" + "|".join(_simple(name) for name in names) + ")")
        else:
            parts.append(re.escape(piece))
    return re.compile("".join(parts), re.DOTALL)


def _simple(name: str) -> str:
    """An alternative may have `*` and `?` of its own."""
    return "".join(
        ".*" if letter == "*" else "." if letter == "?" else re.escape(letter) for letter in name
    )
