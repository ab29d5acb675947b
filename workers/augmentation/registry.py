"""What a method is given and gives back, and the table of methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.augmentation.models import LocalModel

Sample = dict[str, Any]


class MethodError(Exception):
    """The method cannot make these samples, now or later; the message says what would help."""


@dataclass(frozen=True)
class Request:
    """One sample is wanted for each of `parents`. Same request and same generator, same samples."""

    parents: list[Sample]
    seed: int
    params: dict[str, Any]
    seq_len: int  # tokens; what the trainer cuts a sample to
    model: Callable[[], LocalModel]  # loads the newest weights of the job at the first call

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """The parameter `name` as a number. Raises `MethodError` outside low..high."""
        value = self.params.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise MethodError(f"Parameter {name} is {value!r}; a number from {low:g} to {high:g} is needed.")
        return float(value)


@dataclass(frozen=True)
class Made:
    """`samples[i]` is made from `parents[i]` (only its prompt and response, or text), or None if nothing came of it."""

    samples: list[Sample | None]
    generator: str
    params: dict[str, Any] = field(default_factory=dict)  # those in force, defaults filled in


Method = Callable[[Request], Made]
METHODS: dict[str, Method] = {}


def method(name: str) -> Callable[[Method], Method]:
    """Registers a method under its name."""

    def register(function: Method) -> Method:
        assert name not in METHODS, f"two methods called {name}"
        METHODS[name] = function
        return function

    return register


def method_named(name: str) -> Method:
    """Raises `MethodError` naming the known methods."""
    import workers.augmentation.methods  # noqa: F401 (fills the table)

    if name not in METHODS:
        raise MethodError(f"Unknown method {name!r}; known: {', '.join(sorted(METHODS))}.")
    return METHODS[name]
