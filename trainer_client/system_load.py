"""Load of this process and its accelerator for the `system` section of a report; called in the reporter's thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil

GIB = 1024**3


def make_sampler(local_rank: int = 0) -> Callable[[], dict[str, Any]]:
    """A function that returns the protocol's `system` section; what cannot be measured is None."""
    process = psutil.Process(os.getpid())
    process.cpu_percent()  # the first call has nothing to compare with
    gpu = _gpu_sampler(local_rank)

    def sample() -> dict[str, Any]:
        return {
            "gpu_util": None,
            "gpu_mem_gib": None,
            "temp_c": None,
            "throttled": None,
            "cpu_util": round(process.cpu_percent() / 100.0, 3),
            "mem_gib": round(process.memory_info().rss / GIB, 3),
        } | gpu()

    return sample


def _gpu_sampler(local_rank: int) -> Callable[[], dict[str, Any]]:
    """Through NVML where its Python binding and a driver are present, else a function that knows nothing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(local_rank)
    except Exception:  # noqa: BLE001 - no binding, no driver, no such device: all mean "no GPU to ask"
        return dict

    def sample() -> dict[str, Any]:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        thermal = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        return {
            "gpu_util": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,
            "gpu_mem_gib": round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB, 3),
            "temp_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttled": bool(reasons & thermal),
        }

    return sample
