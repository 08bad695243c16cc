"""Cells of the tables in a report."""

from __future__ import annotations


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Cells of the tables under ``heading``, without the first head."""
    section = text.split(heading, 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
