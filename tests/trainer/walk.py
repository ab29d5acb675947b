"""Runs in any mode that are told to leave, resized and killed at random, until they are done. Deterministic for a seed.

Every event ends an attempt of its own, of real processes: by SIGTERM, by an order to resize, or by SIGKILL after a micro-batch or,
in modes that say so, in the midst of a save, an evaluation or a load. What a rank does it writes to a file as it does it; of an
attempt counts what its newest snapshot holds.
"""

from __future__ import annotations

import json
import math
import random
import signal
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.trainer.paths import COUNTS
from tests.trainer.walkmodes import LOAD, MICRO, MODES, Mode, Moment, Order, on_rank
from tests.trainer.worlds import base_config, run_doomed, run_world


@dataclass(frozen=True)
class Place:
    """Where a run stands by its newest snapshot: the step, and the micro-batches of it that are left (None: all)."""

    step: int = 0
    remaining: tuple[int, ...] | None = None

    @classmethod
    def of(cls, snapshots: Path) -> Place:
        """By the snapshot that a resumed run will take, if nothing is wrong with it."""
        from trainer_client.snapshots import SnapshotStore

        for path in SnapshotStore(snapshots).candidates()[:1]:
            head = json.loads((path / "state.json").read_text())
            shares = head["partial"] and head["partial"]["remaining"]
            return cls(head["step"], tuple(index for share in shares for index in share) if shares else None)
        return cls()

    def holds(self, step: int, micro: int) -> bool:
        """Whether that micro-batch is done here."""
        return step < self.step or (step == self.step and self.remaining is not None and micro not in self.remaining)


END = Place(2**31)


@dataclass
class Walk:
    """What came of it. `ledger`: (step, micro-batch, [row, shard, sample]…, checksum of the tensors); `steps`: as reported."""

    orders: list[Order] = field(default_factory=list)
    ledger: list[Any] = field(default_factory=list)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps_lost: list[int] = field(default_factory=list)
    weights: Any = None

    def against(self, whole: Walk) -> dict[str, Any]:
        """How it compares with the run that nothing disturbed; differences of losses and norms relative, of weights absolute."""
        expected = whole.steps.values()
        off = {
            name: max(abs(self.steps[step][name] / row[name] - 1) for step, row in whole.steps.items())
            for name in ("loss", "grad_norm")
        }
        kinds = [order.kind for order in self.orders]
        return {
            "events": len(kinds),
            **{f"{kind}s": kinds.count(kind) for kind in ("leave", "resize", "kill")},
            "killed_during": dict(Counter(order.during for order in self.orders if order.kind == "kill")),
            "steps": len(whole.steps),
            "ledger_equal": sorted(self.ledger) == sorted(whole.ledger) and list(self.steps) == list(whole.steps),
            "counts_equal": [row["counts"] for row in self.steps.values()] == [row["counts"] for row in expected],
            "loss_off": off["loss"],
            "norm_off": off["grad_norm"],
            "weights_off": float(np.abs(self.weights - whole.weights).max()),
            "most_steps_lost": max(self.steps_lost, default=0),
        }


def misses(name: str, told: dict[str, Any]) -> list[str]:
    """What of `against` must not be in that mode."""
    mode = MODES[name]
    wrong = [what for what in ("ledger_equal", "counts_equal") if not told[what]]
    wrong += ["loss_off"] if told["loss_off"] > mode.bound else []
    wrong += [what for what in ("norm_off", "weights_off") if told[what] and not mode.bound]
    return wrong + (["most_steps_lost"] if told["most_steps_lost"] > mode.most_steps_lost else [])


def walk(folder: Path, name: str, *, seed: int, num_events: int, max_world: int, steps: int = 0) -> Walk:
    """Events at random moments with worlds of 1 to `max_world`, then on to the end, `steps` away or a few more than events."""
    mode, draw, found, place = MODES[name], random.Random(seed), Walk(), Place()
    config = _config(folder, mode, steps or num_events + 10)
    world, num_micro = draw.randint(1, max_world), -(-config.global_batch // config.micro_batch)
    for number in range(num_events):
        kind, moment = draw.choice(["leave", "resize", "kill"]), _moment(draw, place, num_micro)
        if moment[0] >= config.steps or found.weights is not None:
            break
        during = MICRO if len(mode.kills) == 1 else draw.choice(mode.kills)
        if during == LOAD and place == Place():  # nothing is loaded yet
            during = MICRO
        order = Order(number, world, kind, moment, draw.randint(1, max_world), during)
        found.orders.append(order)
        place = _attempt(found, config, name, order)
        found.steps_lost.append(0 if (kind, during) == ("kill", LOAD) else moment[0] - place.step)
        world = order.next_world
    if found.weights is None:
        _attempt(found, config, name, Order(num_events, world))
    assert not list(config.gradient_snapshot_dir.glob("corrupt-*"))
    return found


def undisturbed(folder: Path, name: str, steps: int) -> Walk:
    """The same run by one worker without a snapshot."""
    found = Walk()
    _attempt(found, replace(_config(folder, MODES[name], steps), snapshot_every=0), name, Order(0, 1))
    return found


def _config(folder: Path, mode: Mode, steps: int) -> Any:
    mode.write(folder, COUNTS)
    (folder / "told").mkdir(parents=True)
    fields = {
        "global_batch": 13,
        "micro_batch": 2,
        "snapshot_every": 1,
        "steps": steps,
    }  # the last micro-batch is not full
    return base_config(folder, **fields | dict(mode.fields))


def _moment(draw: random.Random, place: Place, num_micro: int) -> Moment:
    """Often inside the step under way, else in one of the next."""
    if place.remaining and draw.random() < 0.6:
        return place.step, draw.choice(place.remaining)
    return place.step + draw.randint(int(place.remaining is not None), 2), draw.randrange(num_micro)


def _attempt(found: Walk, config: Any, name: str, order: Order) -> Place:
    """Run one, and take what counts of it; where the run stands then. One in its last step may end in spite of its order."""
    config = replace(config, resume=order.number > 0)
    told, args = config.run_dir.parent / "told", (config, name, order)
    if order.kind == "kill":
        assert -signal.SIGKILL in run_doomed(order.world, on_rank, *args, folder=config.run_dir)
        place = Place.of(config.gradient_snapshot_dir)
    else:
        ranks = run_world(order.world, on_rank, *args, folder=config.run_dir)
        (code,) = {rank["code"] for rank in ranks}
        assert code in {"leave": (81, 0), "resize": (80, 0), "": (0,)}[order.kind], (order, code)
        found.weights = ranks[0]["weights"] if code == 0 else None
        place = Place.of(config.gradient_snapshot_dir) if code else END
    _take(found, told, order, place)
    return place


def _take(found: Walk, told: Path, order: Order, place: Place) -> None:
    """What the ranks of an attempt wrote down, as far as `place` holds it."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(told.glob(f"{order.number}-*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if "micro" in row and place.holds(row["step"], row["micro"]):
                found.ledger.append([row["step"], row["micro"], row["samples"], row["checksum"]])
            elif "micro" not in row and row["step"] < place.step:
                steps.setdefault(row["step"], []).append(row)
    for step, rows in sorted(steps.items()):
        assert len(rows) == order.world, f"step {step} was reported by {len(rows)} workers"
        assert step not in found.steps, f"step {step} was reported twice"
        assert len({(row["grad_norm"], row["lr"]) for row in rows}) == 1
        parts = [(name, *part) for row in rows for name, part in row["shards"].items()]
        counts = {
            name: [sum(part[at] for part in parts if part[0] == name) for at in (2, 3)] for name, *_ in sorted(parts)
        }
        loss = math.fsum(part[1] for part in parts) / sum(part[2] for part in parts)
        found.steps[step] = rows[0] | {"loss": loss, "counts": counts}
