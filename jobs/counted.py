"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """'1 worker', '2 workers'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
