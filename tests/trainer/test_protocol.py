"""Bodies as docs/trainer_protocol.md has them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client import protocol
from trainer_client.client import SchedulerClient, shard_stats_body
from trainer_client.coercion import NotANumber, flatten_numbers, to_number
from trainer_client.protocol import Ack, Directive, ProtocolError, ShardPoint, StepPoint
from trainer_client.reportsplit import split_report

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**53), 2**53))


@given(st.lists(NUMBERS))
def test_a_column_survives_json_with_its_nan_and_infinities(values: list[protocol.Number]) -> None:
    safe, flags = protocol.encode_column(values)
    again = protocol.decode_column(json.loads(protocol.dumps({"c": safe}))["c"], flags)
    assert [str(value) for value in again] == [str(value) for value in values]


def test_a_report_names_what_is_not_finite_and_carries_shards_compactly() -> None:
    body = protocol.report_body(
        worker=1,
        seq=7,
        steps=[StepPoint(4, 0.2, 30, math.nan, 1e-4), StepPoint(5, 0.3, 31, None, 1e-4)],
        shards=[ShardPoint(4, "b", math.inf, 3, 1), ShardPoint(4, "a", 2.0, 5, 1), ShardPoint(5, "b", 1.0, 2, 1)],
        acks=[Ack("d", "applied", 4)],
    )
    json.loads(protocol.dumps(body), parse_constant=pytest.fail)
    assert body["steps"]["grad_norm"] == [None, None]
    assert body["steps"]["nonfinite"] == {"grad_norm": {"nan": [0]}}
    assert body["shards"]["names"] == ["a", "b"]
    assert body["shards"]["shard"] == [1, 0, 1]
    assert body["shards"]["nonfinite"] == {"loss_sum": {"inf": [0]}}
    assert body["control"]["applied"] == [{"id": "d", "outcome": "applied", "step": 4, "detail": ""}]


def test_the_halves_of_a_split_report_say_together_what_it_said() -> None:
    shards = [ShardPoint(step, f"s{step % 3}", math.nan if step == 4 else float(step), step, 1) for step in range(7)]
    body = protocol.report_body(worker=0, seq=3, shards=shards, acks=[Ack("d", "applied", 1)])
    halves = split_report(body, 9)
    assert halves is not None
    first, second = halves
    assert (first["seq"], second["seq"]) == (3, 9)
    assert "control" in first
    assert "control" not in second
    rows = []
    for half in halves:
        part = half["shards"]
        losses = protocol.decode_column(part["loss_sum"], part["nonfinite"].get("loss_sum"))
        rows += [
            (step, part["names"][at], str(loss))
            for step, at, loss in zip(part["step"], part["shard"], losses, strict=True)
        ]
    assert rows == [(point.step, point.shard, str(point.loss_sum)) for point in shards]


def test_a_report_without_points_cannot_be_split() -> None:
    assert split_report(protocol.report_body(worker=0, seq=0), 1) is None


@pytest.mark.parametrize(
    "raw", [None, {}, {"id": "x"}, {"id": "x", "action": 3}, {"id": "x", "action": "stop", "args": []}]
)
def test_a_directive_without_id_action_or_args_is_refused(raw: object) -> None:
    with pytest.raises(ProtocolError):
        Directive.parse(raw)


def test_numbers_too_large_for_a_double_and_bare_nan_do_not_leave() -> None:
    with pytest.raises(ProtocolError, match="fit"):
        protocol.encode_column([2**60])
    with pytest.raises(ProtocolError, match="strict"):
        protocol.dumps({"x": math.nan})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.array(2.5), 2.5),
        (np.array([3]), 3),
        (np.int64(4), 4),
        (np.bool_(True), 1),
        (Decimal("0.25"), 0.25),
        ("1e-3", 1e-3),
        (True, 1),
        (None, None),
    ],
)
def test_numbers_of_all_kinds_become_plain_ones(value: object, expected: float | None) -> None:
    found = to_number(value)
    assert found == expected
    assert type(found) in {int, float, type(None)}


@pytest.mark.parametrize("value", [object(), [1.0], np.zeros(3), "many", 1j, {}])
def test_what_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(NotANumber):
        to_number(value)


def test_metrics_are_coerced_one_by_one_so_that_a_bad_one_costs_only_itself() -> None:
    """A7."""
    numbers, refused = flatten_numbers(
        {"loss": np.float32(2), "eval": {"a": np.array(1), "b": [1, 2]}, "nan": math.nan, "none": None}
    )
    assert {name: str(number) for name, number in numbers.items()} == {
        "loss": "2.0",
        "eval/a": "1",
        "nan": "nan",
        "none": "None",
    }
    assert set(refused) == {"eval/b"}


def test_shard_stats_carry_nan_as_a_flag() -> None:
    body = shard_stats_body(
        {"shard_id": "a", "loss": np.float32("nan"), "gradient_norm": 0.5, "throughput": 910, "step": 3}
    )
    assert body == {
        "shard_id": "a",
        "loss": None,
        "gradient_norm": 0.5,
        "throughput": 910,
        "step": 3,
        "nonfinite": {"loss": {"nan": [0]}},
    }


@pytest.mark.parametrize("stats", [{}, {"shard_id": ""}, {"shard_id": "a", "lossy": 1}, {"shard_id": "a", "loss": [1]}])
def test_shard_stats_that_make_no_sense_say_what_would(stats: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shard_id|loss"):
        shard_stats_body(stats)


def test_a_client_without_endpoint_or_job_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERFLOW_URL", raising=False)
    with pytest.raises(ValueError, match="COUNTERFLOW_URL"):
        SchedulerClient()


def test_the_light_parts_import_neither_torch_nor_django() -> None:
    code = (
        "import sys; import trainer_client, trainer_client.protocol, trainer_client.reporter, trainer_client.client, "
        "trainer_client.backends.local, trainer_client.backends.launcher, trainer_client.launch_finetune, trainer_client.mixture, "
        "trainer_client.sharddata, trainer_client.snapshots, trainer_client.replay; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'django')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
