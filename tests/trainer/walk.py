"""A run that is resized, told to leave and killed at random, until it is done. Deterministic for a seed."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.trainer.worlds import joined_losses, run_doomed, run_world, train, training

Moment = tuple[int, int]


@dataclass
class Walk:
    """What came of it: one entry an event, the losses reported by attempts that lived to tell, and the final weights."""

    events: list[tuple[str, int, Moment]] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    most_steps_lost: int = 0
    weights: Any = None


@dataclass(frozen=True)
class Place:
    """Where a run stands by its newest snapshot: the step, and the micro-batches of it that are left (all: empty)."""

    step: int = 0
    remaining: tuple[int, ...] = ()

    @classmethod
    def of(cls, snapshots: Path) -> Place:
        """By the snapshot that a resumed run will take, if nothing is wrong with it."""
        from trainer_client.snapshots import SnapshotStore

        for path in SnapshotStore(snapshots).candidates()[:1]:
            head = json.loads((path / "state.json").read_text())
            shares = head["partial"]["remaining"] if head["partial"] else []
            return cls(head["step"], tuple(index for share in shares for index in share))
        return cls()


def walk(config: Any, *, seed: int, num_events: int, max_world: int, num_micro: int) -> Walk:
    """Events at random moments with worlds of 1 to `max_world`, then on to the end."""
    draw, found, place = random.Random(seed), Walk(), Place()
    for number in range(num_events):
        kind = draw.choice(["leave", "leave", "kill"])
        moment = _moment(draw, place, num_micro)
        if moment[0] >= config.steps or found.weights is not None:
            break
        _stage(found, replace(config, resume=number > 0), kind, draw.randint(1, max_world), moment)
        place = Place.of(config.gradient_snapshot_dir)
        found.most_steps_lost = max(found.most_steps_lost, moment[0] - place.step)
    if found.weights is None:
        _take(found, run_world(draw.randint(1, max_world), train, replace(config, resume=True), folder=config.run_dir))
    return found


def _take(found: Walk, ranks: list[dict[str, Any]]) -> None:
    """What an attempt reported; one that was told to leave during its last micro-batches is done all the same."""
    found.losses |= joined_losses(ranks)
    codes = {rank["code"] for rank in ranks}
    assert codes in ({0}, {81}), codes
    if codes == {0}:
        found.weights = ranks[0]["weights"]


def _moment(draw: random.Random, place: Place, num_micro: int) -> Moment:
    """Often inside the step under way, else in one of the next two."""
    if place.remaining and draw.random() < 0.6:
        return place.step, draw.choice(place.remaining)
    return place.step + draw.randint(1, 2), draw.randrange(num_micro)


def _stage(found: Walk, config: Any, kind: str, world: int, moment: Moment) -> None:
    found.events.append((kind, world, moment))
    if kind == "kill":
        assert -signal.SIGKILL in run_doomed(world, doomed, config, moment, folder=config.run_dir)
        return
    _take(found, run_world(world, train, config, (), moment, folder=config.run_dir))


def doomed(config: Any, moment: Moment) -> int:
    """Train; the rank that does the micro-batch `moment` is killed in the midst of it."""

    def prepare(trainer: Any) -> None:
        micro_step = trainer.micro_step

        def deadly(model: Any, batch: Any, micro: Any) -> Any:
            loss = micro_step(model, batch, micro)
            if (batch.step, micro.index) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

        trainer.micro_step = deadly

    return training(config, prepare)
