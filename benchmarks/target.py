"""A figure beside its target, and whether it was met."""

from __future__ import annotations


def check(
    what: str,
    value: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    form: str = ".2f",
) -> bool:
    """Print the figure with PASS or FAIL; form: how to write it, as in f"{value:.2f}"."""
    low = at_least is None or value >= at_least
    high = at_most is None or value <= at_most
    bounds = {"at least": at_least, "at most": at_most}
    said = ", ".join(
        f"{word} {bound:{form}}" for word, bound in bounds.items() if bound is not None
    )
    print(f"{what:<42} {value:{form}}   ({said})  {'PASS' if low and high else 'FAIL'}", flush=True)
    return low and high
