"""Stall and time to durable of a snapshot, and a resize from end to end: `make bench-snapshot`; the last line is the JSON.

For each size a real training (one process, fp32, AdamW) stops after two steps and saves its state, ways in turn: ours at once
and behind the back of the training, plain `torch.save` with fsync, torch's distributed checkpoint (DCP) at once and async; as
limits, copying the tensors in memory, and the disk's own speed. Ours is durable when the snapshot counts, and verified when it
has been read back from the disk; the others read nothing back. `--quick`: the smallest size once. Then the resize
(`snapshot_resize.py`).

A disk may be three times as fast now as in a minute. So its speed is measured right before and right after each save of ours, in
two ways: as many bytes in one file with one fsync (`disk`), and the same files in a folder of their own, each with an fsync, the
folder too, and its name (`files`). `…_over_disk` and `…_over_files` are medians of the saves' own ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.disk_speed import disk_s, fresh, timed  # noqa: E402

SIZES_M = (10, 100, 500)


def write_shards(folder: Path) -> Path:
    """A few short samples."""
    with open(folder / "s.jsonl", "w") as file:
        for index in range(64):
            file.write(json.dumps({"text": " ".join(f"w{(index * 31 + k * k) % 97}" for k in range(24))}) + "\n")
    (folder / "shard_config.yaml").write_text("shards:\n- {id: s, path: s.jsonl}\n")
    return folder / "shard_config.yaml"


def model_of(size_m: int, folder: Path) -> str:
    """A name or folder that the launcher takes; above 200 M parameters a model made here."""
    if size_m <= 200:
        return f"tiny:{size_m}m"
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer_client.models import train_tokenizer

    layers = max(1, round((size_m * 1e6 - 4096 * 1536) / 28.3e6))
    shape = {"hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 24, "vocab_size": 4096}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, tie_word_embeddings=True, pad_token_id=0, **shape))
    model.save_pretrained(folder / "model")
    train_tokenizer((folder / "s.jsonl").read_text().splitlines(), 4096).save_pretrained(folder / "model")
    return str(folder / "model")


def measure_size(size_m: int, repeats: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: train two steps, then save in every way."""
    from transformers import TrainerCallback

    from trainer_client.finetune import build_trainer
    from trainer_client.finetune_config import FinetuneConfig
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    config = FinetuneConfig(
        model=model_of(size_m, folder), shard_config=write_shards(folder) if size_m <= 200 else folder / "shard_config.yaml",
        gradient_snapshot_dir=folder / "snapshots", run_dir=folder / "run", steps=2, global_batch=1, micro_batch=1,
        seq_len=32, snapshot_every=0, export_every=0, warmup_steps=0,
    )  # fmt: skip
    trainer = build_trainer(config, Session(SessionConfig(folder / "run")), load_shard_config(config.shard_config))
    found: dict[str, Any] = {}

    class Measure(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            found.update(measure_ways(trainer, repeats, folder / "peers"))

    trainer.add_callback(Measure())
    trainer.train()
    return found


def measure_ways(trainer: Any, repeats: int, folder: Path) -> dict[str, Any]:
    """Median seconds of each way; ways take turns."""
    ways = Ways(trainer, folder)
    rounds: list[dict[str, float]] = []
    turns = [ways.beside_the_disk("sync"), ways.beside_the_disk("async")]
    turns += [ways.copy, ways.torch_save, ways.dcp, ways.dcp_async]
    for _ in range(repeats + 1):
        rounds.append({})
        for way in turns:
            fresh(folder)
            rounds[-1] |= way()
        turns.append(turns.pop(0))  # what a way leaves to the disk is not always the same one's burden
    counted = rounds[1:]  # the first is to get everything going
    found: dict[str, Any] = {name: round(statistics.median(one[name] for one in counted), 4) for name in counted[0]}
    found["async_stall_over_copy"] = round(found["ours_async_stall_s"] / found["copy_s"], 2)
    parameters = sum(part.numel() for part in trainer.model.parameters())
    return found | {"num_parameters": parameters, "state_bytes": ways.num_bytes}


class Ways:
    """One state, and the ways to save it; each returns seconds by name."""

    def __init__(self, trainer: Any, folder: Path) -> None:
        from trainer_client.training_state import model_state

        self.trainer, self.folder, self.step = trainer, folder, trainer.state.global_step
        self.state = {"model": model_state(trainer.model), "optimizer": trainer.optimizer.state_dict()}
        tensors = {tensor.data_ptr(): tensor for tensor in _tensors(self.state)}
        self.tensors = list(tensors.values())
        self.num_bytes = sum(tensor.nbytes for tensor in self.tensors)
        self.durable_at = 0.0
        self.sizes: list[int] = []  # of the files of the last snapshot
        self._note_durable()

    def copy(self) -> dict[str, float]:
        return {"copy_s": timed(lambda: [tensor.clone() for tensor in self.tensors])}

    def beside_the_disk(self, way: str) -> Callable[[], dict[str, float]]:
        """Our save of that way, and what the disk takes without us right before and right after it."""

        def measured() -> dict[str, float]:
            before = disk_s(self.folder, self.num_bytes, self.sizes)
            fresh(self.folder)
            found = self._ours(way, wait=way == "sync")
            fresh(self.folder)
            after = disk_s(self.folder, self.num_bytes, self.sizes)
            for name in before:
                beside_s = (before[name] + after[name]) / 2
                found[f"{name}_beside_{way}_s"] = beside_s
                found[f"{way}_durable_over_{name}"] = found[f"ours_{way}_durable_s"] / beside_s
            return found

        return measured

    def _ours(self, way: str, *, wait: bool) -> dict[str, float]:
        began = time.perf_counter()
        self._save(wait=wait)
        stall = time.perf_counter() - began
        trouble = self.trainer.saver.settle()
        assert not trouble, trouble
        told = {"stall": stall, "durable": self.durable_at - began, "verified": time.perf_counter() - began}
        return {f"ours_{way}_{name}_s": value for name, value in told.items()}

    def _note_durable(self) -> None:
        """The store's `write` returns when the snapshot counts."""
        store = self.trainer.saver.store
        write = store.write

        def noted(*args: Any, **more: Any) -> Any:
            snapshot = write(*args, **more)
            self.durable_at = time.perf_counter()
            self.sizes = [path.stat().st_size for path in snapshot.path.iterdir()]
            return snapshot

        store.write = noted

    def _save(self, *, wait: bool) -> None:
        self.step += 1  # the same state under another name: one that is saved already is not saved again
        trouble = self.trainer.saver.save(self.step, wait=wait)
        assert not trouble, trouble

    def torch_save(self) -> dict[str, float]:
        import torch

        def save() -> None:
            with open(self.folder / "state.pt", "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())

        return {"torch_save_stall_s": timed(save)}

    def dcp(self) -> dict[str, float]:
        import torch.distributed.checkpoint as dcp

        return {
            "dcp_stall_s": timed(lambda: dcp.save(self.state, checkpoint_id=str(self.folder / "dcp"), no_dist=True))
        }

    def dcp_async(self) -> dict[str, float]:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        dist.init_process_group("gloo", init_method=f"file://{self.folder}/group", rank=0, world_size=1)
        try:
            began = time.perf_counter()
            future: Any = dcp.async_save(self.state, checkpoint_id=str(self.folder / "dcp"))
            stall = time.perf_counter() - began
            future.result()
            return {"dcp_async_stall_s": stall, "dcp_async_durable_s": time.perf_counter() - began}
        finally:
            dist.destroy_process_group()


def _tensors(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def table(sizes: dict[str, dict[str, Any]]) -> str:
    """A row for each measure, a column for each size."""
    names = list(next(iter(sizes.values())))
    rows = [f"{'':26s}" + "".join(f"{size + ' M':>14}" for size in sizes)]
    return "\n".join(
        rows + [f"{name:26s}" + "".join(f"{found[name]:>14,}" for found in sizes.values()) for name in names]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes",
        help="in millions of parameters; empty: only the resize",
        type=lambda text: [int(size) for size in text.split(",") if size],
        default=list(SIZES_M),
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the smallest size once, a small model for the resize")
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "bench", help="on the disk to be measured")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    sizes, repeats = (flags.sizes[:1], 1) if flags.quick else (flags.sizes, flags.repeats)
    flags.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=flags.folder) as name:
        folder = Path(name)
        if flags.one:
            write_shards(folder)
            (flags.folder / f"snapshot-{flags.one}.json").write_text(
                json.dumps(measure_size(flags.one, flags.repeats, folder))
            )
            return 0
        found = {str(size): _in_own_process(size, repeats, flags.folder) for size in sizes}
        if found:
            print(table(found), flush=True)
        from benchmarks.snapshot_resize import measure_resize

        write_shards(folder)
        resize = measure_resize(folder, *(("tiny:1m", 20) if flags.quick else ("tiny:10m", 100)))
    for key, value in resize.items():
        print(f"{key:26s} {value:>14}")
    told = {"sizes": found, "resize": resize, "num_cores": len(os.sched_getaffinity(0)), "repeats": repeats}
    target = ROOT / "var" / "bench" / "snapshot.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(told))
    print(json.dumps(told))
    return 0


def _in_own_process(size_m: int, repeats: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(size_m), "--repeats", str(repeats), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{size_m} M failed:\n{done.stderr[-3000:]}")
    part = folder / f"snapshot-{size_m}.json"
    found: dict[str, Any] = json.loads(part.read_text())
    part.unlink()
    return found


if __name__ == "__main__":
    sys.exit(main())
