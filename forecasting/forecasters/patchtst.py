"""PatchTST (Nie et al., ICLR 2023; transformers' implementation) for horizons of days, trained on the CPU in minutes.

The only file of the library that imports torch, and only when a model is fitted or asked.
Shape letters: C coarse (about hourly) points, X context length, P prediction length, N windows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from forecasting.forecasters.base import GuardedForecaster
from forecasting.forecasters.coarse import Grid, coarse_anchors, grid_of

_MAX_POINTS = 4_000
_BATCH = 32
_PATIENCE = 4


@dataclass(frozen=True)
class Shape:
    """Sizes of the windows in coarse steps; two to three days ahead from four to six days of context."""

    context: int
    prediction: int
    patch: int = 8

    @classmethod
    def of(cls, num_points: int) -> Shape:
        prediction = int(np.clip(num_points // 8, 8, 72))
        return cls(context=max(16, 2 * prediction // 8 * 8), prediction=prediction)


class PatchTst(GuardedForecaster):
    """A small PatchTST that forecasts the change from the last value, so that its zero is persistence.

    The last quarter of the windows is kept from training: it decides when to stop, and its errors give the bands.
    Deterministic for a seed, unless the time budget ends the training first (then a warning says so).
    """

    name = "patchtst"
    min_points = 96

    def __init__(
        self, target: str | None = None, *, time_budget_s: float = 60.0, seed: int = 1, max_epochs: int = 30
    ) -> None:
        super().__init__(target, time_budget_s=time_budget_s)
        self.seed = seed
        self.max_epochs = max_epochs

    def _learn(self) -> None:
        self._grid: Grid = grid_of(self.history)
        points = self._points()
        self._shape = Shape.of(len(points))
        inputs, targets = self._windows(points)
        num_train = len(inputs) * 3 // 4 - self._shape.prediction
        if num_train < _BATCH:
            raise ValueError(
                f"{len(points)} hourly points give {max(0, num_train)} training windows, {_BATCH} are needed"
            )
        self._scale = float(targets[:num_train].std()) or 1.0
        held_out = slice(len(inputs) * 3 // 4, None)
        self._model, seconds_up = self._trained(
            inputs[:num_train] / self._scale, targets[:num_train] / self._scale,
            inputs[held_out] / self._scale, targets[held_out] / self._scale,
        )  # fmt: skip
        if seconds_up:
            self._said += (f"training stopped at its budget of {self.time_budget_s:g} s",)
        self._held_out = targets[held_out] - self._scale * _run(self._model, inputs[held_out] / self._scale)

    def _points(self) -> np.ndarray:
        return self.history.values[::-1][:: self._grid.stride][:_MAX_POINTS][::-1]

    def _windows(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[N,X] contexts and [N,P] what followed, both as differences from the context's last value."""
        context, prediction = self._shape.context, self._shape.prediction
        whole = np.lib.stride_tricks.sliding_window_view(points, context + prediction)
        last = whole[:, context - 1 : context]
        return whole[:, :context] - last, whole[:, context:] - last

    def _trained(self, x: np.ndarray, y: np.ndarray, x_held: np.ndarray, y_held: np.ndarray) -> tuple[Any, bool]:
        """The model with the lowest held-out error, and whether the time ran out."""
        import torch

        until = time.monotonic() + self.time_budget_s
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = _model(self._shape)
            optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
            inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
            best, state, stale = float(np.abs(y_held).mean()), None, 0
            for _ in range(self.max_epochs):
                for rows in torch.randperm(len(inputs)).split(_BATCH):
                    if time.monotonic() > until:
                        return _restored(model, state), True
                    loss = (_outputs(model, inputs[rows]) - targets[rows]).abs().mean()
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                error = float(np.abs(_run(model, x_held) - y_held).mean())
                stale += 1
                if error < best:
                    best, stale = error, 0
                    state = {name: value.clone() for name, value in model.state_dict().items()}
                if stale >= _PATIENCE:
                    break
        return _restored(model, state), False

    def _anchors(self, horizon: int) -> np.ndarray:
        return coarse_anchors(self._grid, horizon) if hasattr(self, "_grid") else super()._anchors(horizon)

    def _spacing(self) -> int:
        return self._grid.stride

    def _centre(self, horizon: int) -> np.ndarray:
        """Beyond the prediction length the forecast is fed back as context."""
        points, steps = self._points(), self._grid.steps(horizon)
        path = points[-self._shape.context :]
        while len(path) - self._shape.context < steps:
            context = path[-self._shape.context :]
            change = self._scale * _run(self._model, (context - context[-1])[None] / self._scale)[0]
            path = np.append(path, context[-1] + change)
        return self._grid.fine(path[self._shape.context :][:steps], float(self.history.values[-1]), horizon)

    def _errors(self, ahead: int) -> np.ndarray:
        steps = int(np.clip(round(ahead / self._grid.stride), 1, self._shape.prediction))
        return np.asarray(self._held_out[:, steps - 1])


def _model(shape: Shape) -> Any:
    import torch
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=1, context_length=shape.context, prediction_length=shape.prediction,
        patch_length=shape.patch, patch_stride=shape.patch, num_hidden_layers=2, d_model=32, num_attention_heads=4,
        ffn_dim=64, pooling_type=None, scaling=None, loss="mse", attention_dropout=0.1, ff_dropout=0.1, head_dropout=0.1,
    )  # fmt: skip
    model = PatchTSTForPrediction(config)
    # Start as persistence: the head's output is zero until training finds something better.
    for name, parameter in model.head.named_parameters():
        if "projection" in name:
            torch.nn.init.zeros_(parameter)
    return model


def _outputs(model: Any, inputs: Any) -> Any:
    return model(past_values=inputs[:, :, None]).prediction_outputs[:, :, 0]


def _run(model: Any, inputs: np.ndarray) -> np.ndarray:
    """[N,P] the model's forecasts without dropout."""
    import torch

    was_training = model.training
    model.eval()
    with torch.no_grad():
        found = _outputs(model, torch.tensor(inputs, dtype=torch.float32)).numpy().astype(np.float64)
    model.train(was_training)
    return np.asarray(found)


def _restored(model: Any, state: Any) -> Any:
    """The best state; without one (nothing beat persistence) the head is silenced, which is persistence."""
    import torch

    if state is not None:
        model.load_state_dict(state)
    else:
        for name, parameter in model.head.named_parameters():
            if "projection" in name:
                torch.nn.init.zeros_(parameter)
    return model.eval()
