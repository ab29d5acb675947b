"""Weights of the model in training for others to load (`from_pretrained`): `{root}/export/step-N`, whole or not there.

Rank 0 copies the tensors and goes on training; a thread writes, makes durable, renames, prunes and tells the server.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer_client.journal import sync_folder
from trainer_client.training_state import model_state

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("counterflow.export")

KEEP = 2
LABEL = "counterflow.json"


class WeightsExporter:
    """`export(step)` on rank 0; at most one export is being written at a time."""

    is_collective = False  # whether all ranks are to call `export`

    def __init__(
        self,
        root: Path,
        model: Any,
        tokenizer: PreTrainedTokenizerBase | None,
        report: Callable[..., None],
        keep: int = KEEP,
    ) -> None:
        self.root = root / "export"
        self._model, self._tokenizer, self._report, self._keep = model, tokenizer, report, keep
        self._thread: threading.Thread | None = None
        self._last_step = -1
        self.last_error = ""

    def export(self, step: int) -> bool:
        """Begin to export the weights as they are now; False when the one before is still being written, or was the same."""
        if not self._is_due(step):
            return False
        self._begin(step, stage(model_state(self._model)))
        return True

    def _is_due(self, step: int) -> bool:
        if self._thread is not None and self._thread.is_alive() and step != self._last_step:
            log.warning("weights of step %d are not exported: the export before is still being written", step)
            return False
        return step != self._last_step

    def _begin(self, step: int, staged: dict[str, torch.Tensor]) -> None:
        self._last_step = step
        self._thread = threading.Thread(target=self._write, args=(step, staged), name="counterflow-export", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float = 60.0) -> None:
        """Let an export in progress end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _write(self, step: int, staged: dict[str, torch.Tensor]) -> None:
        name = f"step-{step:06d}"
        uri = (self.root / name).resolve().as_uri()
        tell = {"snapshot": f"weights-{name}-{secrets.token_hex(2)}", "kind": "weights", "step": step, "uri": uri}
        try:
            num_bytes = self._write_folder(name, staged, tell)
        except Exception as error:  # noqa: BLE001 - safetensors has errors of its own kind, also for a full disk
            self.last_error = f"{type(error).__name__}: {error}"
            log.error("weights of step %d could not be exported: %s", step, self.last_error)
            self._report(status="corrupt", detail=self.last_error, **tell)
            return
        self._report(status="complete", num_bytes=num_bytes, **tell)
        self._prune()

    def _write_folder(self, name: str, staged: dict[str, torch.Tensor], tell: dict[str, Any]) -> int:
        """Temporary folder, fsync of each file, rename; bytes written."""
        draft, target = self.root / f".writing-{name}-{os.getpid()}", self.root / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        self._model.save_pretrained(draft, state_dict=staged)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(draft)
        (draft / LABEL).write_text(json.dumps(tell), encoding="utf-8")
        files = [path for path in draft.rglob("*") if path.is_file()]
        for path in files:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        num_bytes = sum(path.stat().st_size for path in files)
        if target.exists():  # a run that went back in steps writes the same step again
            target.rename(self.root / f".old-{name}-{os.getpid()}")
        draft.rename(target)
        sync_folder(self.root)
        return num_bytes

    def _prune(self) -> None:
        """Keep the newest exports only; leavings of killed writers go as well."""
        for leaving in [*self.root.glob(".writing-*"), *self.root.glob(".old-*")]:
            shutil.rmtree(leaving, ignore_errors=True)
        newest = sorted(self.root.glob("step-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[self._keep :]:
            try:
                label = json.loads((path / LABEL).read_bytes())
            except (OSError, ValueError):
                label = None  # not written by an exporter: deleted without a word to the server
            shutil.rmtree(path, ignore_errors=True)
            if label is not None:
                self._report(status="deleted", **label)


def stage(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU; tensors that share memory (tied weights) still do afterwards."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    staged = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in copies:
            copies[key] = tensor.detach().to("cpu", copy=True)
        staged[name] = copies[key]
    return staged
