"""What a simulated market is like, from one line: `seed=7,factor=60,zones=2,notice_s=8`."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class MarketOptions:
    """`factor`: market seconds in a second. Names in `_s` are seconds of the wall clock, `_hours` and `_days` of the market."""

    seed: int = 7
    factor: float = 60.0
    zones: int = 2
    capacity: int = 8
    up_hours: float = 0.0  # mean length of a spell with machines; 0: as the generator's zones
    down_hours: float = 0.0
    outages_per_week: float = 0.5
    past_days: float = 14.0
    days: float = 28.0
    notice_s: float = 8.0
    boot_s: float = 1.0
    end_s: float = 0.3
    trace: str = ""  # a file with the market instead of a generated one
    closed: int = 0  # 1: tells no past and has no machines until its clock is set
    port: int = 0  # 0: any free one

    def __post_init__(self) -> None:
        if self.factor <= 0 or self.days <= 0:
            raise ValueError("factor and days must be above 0")
        if not 1 <= self.zones <= 6:
            raise ValueError("zones must be from 1 to 6")
        if min(self.notice_s, self.boot_s, self.end_s, self.past_days) < 0:
            raise ValueError("notice_s, boot_s, end_s and past_days must not be negative")


def market_options(text: str) -> MarketOptions:
    """Parse `name=value,…`. ValueError names what is unknown or no number."""
    types = {field.name: field.type for field in fields(MarketOptions)}
    given: dict[str, int | float | str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or name not in types:
            raise ValueError(f"{part!r} is not one of {', '.join(types)} with a value")
        kind = {"int": int, "float": float, "str": str}[str(types[name])]
        try:
            given[name] = kind(value)
        except ValueError:
            raise ValueError(f"{name} must be a number, not {value!r}") from None
    return MarketOptions(**given)  # type: ignore[arg-type]
