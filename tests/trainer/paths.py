"""Runs that are stopped and taken up again by other worlds, many at a time in the same processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.trainer.worlds import base_config, joined_ledger, joined_losses, run_world, train_each, write_shards

COUNTS = {"a": 17, "b": 9, "c": 23}
Moment = int | tuple[int | str, int]


@dataclass(frozen=True)
class Course:
    """`worlds[i]` trains until SIGTERM comes at `moments[i]` (a step, or a step and a micro-batch); the last one to the end.

    `fields` of the config hold for all stages, `of_stages[i]` for one.
    """

    worlds: tuple[int, ...]
    moments: tuple[Moment, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    of_stages: tuple[Mapping[str, Any], ...] = ()


def run_paths(
    folder: Path,
    paths: Mapping[str, Course],
    *,
    write: Callable[..., Any] = write_shards,
    run: Callable[..., Any] = train_each,
    **shared: Any,
) -> dict[str, list[list[dict[str, Any]]]]:
    """For each path and stage what each rank saw. Stages of equal world size share their processes."""
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in paths}
    for name in paths:
        write(folder / name, COUNTS)
    for stage in range(max(len(path.worlds) for path in paths.values())):
        due = {name: path for name, path in paths.items() if len(path.worlds) > stage}
        for world in sorted({path.worlds[stage] for path in due.values()}):
            names = [name for name, path in due.items() if path.worlds[stage] == world]
            cases = [_case(folder / name, paths[name], stage, shared) for name in names]
            ranks = run_world(world, run, cases, folder=folder)
            for at, name in enumerate(names):
                found[name].append([rank[at] for rank in ranks])
    return found


def _case(folder: Path, path: Course, stage: int, shared: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"steps": 3, "global_batch": 14, "micro_batch": 1, "resume": stage > 0} | shared | dict(path.fields)
    fields |= path.of_stages[stage] if path.of_stages else {}
    dropout, build = fields.pop("dropout", 0.1), fields.pop("build", None)
    leave_at = path.moments[stage] if stage < len(path.moments) else None
    extra = {"threads": fields.pop("threads")} if "threads" in fields else {}
    return extra | {"config": base_config(folder, **fields), "leave_at": leave_at, "dropout": dropout, "build": build}


def starts(stages: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[int, int]]:
    """(step, micro-batches done in it) at which each stage began."""
    return [(ranks[0]["start"], ranks[0]["start_micro"]) for ranks in stages]


def assert_nothing_lost(
    stages: Sequence[Sequence[dict[str, Any]]], whole: Sequence[dict[str, Any]], relative: float = 1e-5
) -> None:
    """Samples, losses, rates and planned end are those of the run that was never stopped; weights up to rounding."""
    assert sorted(row for ranks in stages for row in joined_ledger(ranks)) == joined_ledger(whole)
    expected, found = joined_losses(whole), {}
    for ranks in stages:
        assert not found.keys() & joined_losses(ranks).keys(), "a step was reported twice"
        found |= joined_losses(ranks)
        assert ranks[0]["max_steps"] == whole[0]["max_steps"]
        for step, columns in ranks[0]["steps"].items():
            assert columns["lr"] == whole[0]["steps"][step]["lr"]
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert abs(found[step] - loss) <= relative * loss, f"step {step}"
    for step, shards in samples_by_shard([whole]).items():
        assert samples_by_shard(stages)[step] == shards
    np.testing.assert_allclose(stages[-1][0]["weights"], whole[0]["weights"], atol=2e-5)


def samples_by_shard(stages: Sequence[Sequence[dict[str, Any]]]) -> dict[int, dict[str, tuple[int, int]]]:
    """step -> shard -> (supervised tokens, samples) as reported by all ranks together."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for rank in (rank for ranks in stages for rank in ranks):
        for step, shards in rank["shards"].items():
            for name, (_, tokens, samples) in shards.items():
                before = found.setdefault(step, {}).get(name, (0, 0))
                found[step][name] = (before[0] + tokens, before[1] + samples)
    return found


def assert_equal_bits(stages: Sequence[Sequence[dict[str, Any]]], whole: Sequence[dict[str, Any]]) -> None:
    """Weights of the last stage and every gradient norm are the same bit by bit."""
    assert np.array_equal(stages[-1][0]["weights"], whole[0]["weights"])
    for ranks in stages:
        for step, columns in ranks[0]["steps"].items():
            assert columns["grad_norm"] == whole[0]["steps"][step]["grad_norm"], f"step {step}"
