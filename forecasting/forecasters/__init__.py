"""Forecasters by name. Each lives in its own file and is imported when it is asked for, since some load large libraries."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from forecasting.forecasters.base import LEVELS, Forecast, Forecaster

# name -> (module, class). To add one: write the file, add its line here and a row in docs/forecasters.md.
REGISTRY: dict[str, tuple[str, str]] = {
    "persistence": ("forecasting.forecasters.persistence", "Persistence"),
    "seasonal_naive": ("forecasting.forecasters.seasonal_naive", "SeasonalNaive"),
    "ets": ("forecasting.forecasters.ets", "Ets"),
    "arima": ("forecasting.forecasters.arima", "Arima"),
    "hazard": ("forecasting.forecasters.hazard", "Hazard"),
    "patchtst": ("forecasting.forecasters.patchtst", "PatchTst"),
    "auto": ("forecasting.forecasters.auto", "Auto"),
}

__all__ = ["LEVELS", "REGISTRY", "Forecast", "Forecaster", "make"]


def make(name: str, target: str | None = None, **options: Any) -> Forecaster:
    """A new forecaster. Raises ValueError with the names there are."""
    if name not in REGISTRY:
        raise ValueError(f"no forecaster {name!r}; there are {', '.join(REGISTRY)}")
    module, kind = REGISTRY[name]
    made: Forecaster = getattr(import_module(module), kind)(target, **options)
    return made
