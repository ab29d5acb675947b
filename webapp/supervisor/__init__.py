"""Starts every process of an installation, brings back what dies, and stops all of it cleanly."""
