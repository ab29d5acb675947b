"""Feeds: one importer per source. Each turns what a provider sends into observations, with the rest quarantined."""
