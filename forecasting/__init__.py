"""Spot market library: market series in, forecasts, plans and replays out. Imports neither Django nor torch."""
