"""A simulated cloud in fast motion: a provider of machines with a price, a notice, a real end and a bill of its own.

It runs as a process of its own (`python -m workers.simcloud --market seed=7,factor=60`), keeps its state in one SQLite file and
speaks HTTP on loopback. It knows nothing of the server; the server knows it through `workers.simcloud.client` only.
"""
