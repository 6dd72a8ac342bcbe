"""Rows of the table that `make bench` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured value and the most it may be.

    Attributes
    ----------
    scenario
        What was done.
    measured
        The two numbers compared, as text: "142 ms : 121 ms floor".
    value, bar
        What the bar is about, and the bar; a ratio ("x") or a quantity with its unit. None where
        nothing was measured: `measured` then says why.
    """

    scenario: str
    measured: str
    value: float | None = None
    bar: float | None = None
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.value <= self.bar


def ratio(
    scenario: str, times: dict[str, float], ours: str, against: str, bar: float, unit: str = "ms"
) -> Row:
    """Compare two medians given in seconds."""
    scale = {"s": 1, "ms": 1000}[unit]
    mine, other = times[ours] * scale, times[against] * scale
    measured = f"{mine:.4g} {unit} : {other:.4g} {unit} {against}"
    return Row(scenario, measured, times[ours] / times[against], bar)


def quantity(scenario: str, value: float, bar: float, unit: str) -> Row:
    """Hold one number against its bar."""
    return Row(scenario, "", value, bar, unit)


def absent(scenario: str, contender: str, install: str) -> Row:
    """Tell how to get a contender that is not installed."""
    return Row(scenario, f"{contender} is not installed: {install}")


def render(row: Row) -> str:
    """Lay one row out in columns."""
    if row.value is None:
        return f"{row.scenario:<44}{row.measured}"
    value = f"{row.value:.3g} {row.unit}"
    bar = f"at most {row.bar:g} {row.unit}"
    verdict = "met" if row.met else "MISSED"
    return f"{row.scenario:<44}{row.measured:<34}{value:>10}   {bar:<18}{verdict}"
