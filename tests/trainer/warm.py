"""Imported once by the process that test ranks are forked from: what every run would otherwise do again."""

import gc

import trainer_client.callback  # noqa: F401
from trainer_client.backends.warm_process import preload

preload()
gc.collect()
gc.freeze()
