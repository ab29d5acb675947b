"""Shard configs and sample files: what is read, and what errors say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_client.sampleforms import Form, conversed, preferred
from trainer_client.sharddata import ShardDataError, ShardSet, load_shard_config, parse_added
from trainer_client.shardfiles import open_samples


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def test_a_config_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "one"}\n')
    config = write(
        tmp_path / "shard_config.yaml",
        "shards:\n- {id: a, source: s, type: text, size_mb: 1, hardness_score: 0.5, path: a.jsonl, provenance: {licence: MIT}}\n",
    )
    (entry,) = load_shard_config(config)
    assert entry.path == tmp_path / "a.jsonl"
    assert (entry.id, entry.hardness_score, entry.weight, entry.provenance) == ("a", 0.5, 1.0, {"licence": "MIT"})
    assert ShardSet.open([entry]).counts() == [("a", 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "needs a list 'shards'"),
        ("shards: []", "at least one entry"),
        ("shards: [3]", r"shards\[1\] is int"),
        ("shards: [{id: a}]", r"shards\[1\] needs 'path'"),
        ("shards: [{id: a, path: x, size_mb: -1}]", "size_mb must be"),
        ("shards: [{id: a, path: x}, {id: a, path: y}]", "named twice: a"),
        ("shards: [{id: a, path: x, provenance: 3}]", "provenance"),
        ("shards: [{id: a, path: x, paused: 1}]", "paused must be true or false"),
        ("shards: [a: b: c", "not YAML"),
    ],
)
def test_a_broken_config_names_entry_and_field(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ShardDataError, match=words):
        load_shard_config(write(tmp_path / "shard_config.yaml", content))


def test_jsonl_passes_over_blank_lines_and_needs_no_last_line_break(tmp_path: Path) -> None:
    samples = open_samples(
        write(tmp_path / "a.jsonl", '{"text": "one"}\n\n  \n{"prompt": "p", "response": "r", "id": 7}')
    )
    assert [samples.read(index) for index in range(len(samples))] == [
        {"text": "one"},
        {"prompt": "p", "response": "r", "id": 7},
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", r"a\.jsonl:3: not JSON"),
        ("[1]", r"a\.jsonl:3: a line must hold one JSON object, found list"),
        ('{"prompt": "p"}', r"a\.jsonl:3: 'response' is missing"),
        ('{"text": 5}', r"a\.jsonl:3: 'text' is int, not text"),
        ('{"question": "p"}', "a sample has prompt and response, or text"),
    ],
)
def test_a_broken_line_is_named_with_file_and_number(tmp_path: Path, line: str, words: str) -> None:
    samples = open_samples(write(tmp_path / "a.jsonl", f'{{"text": "one"}}\n\n{line}\n'))
    with pytest.raises(ShardDataError, match=words):
        samples.read(1)


def test_csv_text_and_parquet_give_the_same_kind_of_samples(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = write(tmp_path / "a.csv", 'prompt,response\nhi,"two\nlines"\nb,c\n')
    text = write(tmp_path / "b.txt", "one\nstill one\n\n\ntwo\n")
    rows = [{"instruction": f"i{n}", "input": "x" if n else "", "output": "o"} for n in range(7)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=3)
    found = [open_samples(path) for path in (table, text, tmp_path / "c.parquet")]
    assert [len(samples) for samples in found] == [2, 2, 7]
    assert found[0].read(0)["response"] == "two\nlines"
    assert found[1].read(0) == {"text": "one\nstill one"}
    assert [found[2].read(n)["prompt"] for n in (6, 0)] == ["i6\nx", "i0"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("prompt,response\na,b\na,b,c\n", "csv:3: more fields"), ('prompt,response\na,"b\n', "csv:2")],
)
def test_a_broken_csv_row_is_named(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ShardDataError, match=words):
        open_samples(write(tmp_path / "a.csv", content))


def test_missing_empty_and_unknown_files_say_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(ShardDataError, match="no such file"):
        open_samples(tmp_path / "none.jsonl")
    with pytest.raises(ShardDataError, match="jsonl, csv, text, parquet"):
        open_samples(write(tmp_path / "a.bin", "x"))
    write(tmp_path / "empty.jsonl", "")
    entries = load_shard_config(write(tmp_path / "c.yaml", "shards: [{id: a, path: empty.jsonl}]"))
    with pytest.raises(ShardDataError, match="holds no sample"):
        ShardSet.open(entries)


def test_held_out_samples_are_not_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "".join(json.dumps({"text": str(n)}) + "\n" for n in range(10)))
    shards = ShardSet.open(load_shard_config(write(tmp_path / "c.yaml", "shards: [{id: a, path: a.jsonl}]")), 0.3)
    assert shards.counts() == [("a", 7)]
    assert [part.read(index)["text"] for _, part, index in shards.held_out()] == ["7", "8", "9"]


def test_added_samples_extend_or_replace(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "old"}\n')
    shards = ShardSet.open(load_shard_config(write(tmp_path / "c.yaml", "shards: [{id: a, path: a.jsonl}]")))
    shards.add("a", parse_added(b'{"text": "new"}\n', "r2", 1), "extend")
    assert [shards.read(0, index)["text"] for index in range(2)] == ["old", "new"]
    shards.add("a", parse_added(b'{"text": "other"}\n', "r3", 1), "replace")
    shards.add("b", parse_added(b'{"text": "b"}\n', "r1", 1), "replace")
    assert shards.counts() == [("a", 1), ("b", 1)]
    assert shards.revision == [1, 0]
    with pytest.raises(ShardDataError, match="1 samples arrived, 2 were announced"):
        parse_added(b'{"text": "b"}\n', "r1", 2)
    with pytest.raises(ShardDataError, match="r1:1: not JSON"):
        parse_added(b"oops\n", "r1", 1)


MESSAGES = [{"role": "user", "content": "say"}]


@pytest.mark.parametrize(
    ("form", "good", "bad", "words"),
    [
        (
            preferred,
            {"prompt": "p", "chosen": "c", "rejected": "r"},
            {"prompt": "p", "chosen": "c"},
            "'rejected' is missing",
        ),
        (
            preferred,
            {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES},
            {"prompt": "p", "chosen": MESSAGES, "rejected": MESSAGES},
            "not of one kind",
        ),
        (conversed, {"messages": MESSAGES}, {"messages": "say"}, "must be a list"),
        (
            conversed,
            {"prompt": "p", "completion": "c"},
            {"prompt": "p", "completion": MESSAGES},
            "two texts or two lists",
        ),
        (conversed, {"text": "t"}, {"prompt": "p"}, "'response' is missing"),
    ],
)
def test_each_way_of_training_has_its_form(tmp_path: Path, form: Form, good: object, bad: object, words: str) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(good) + "\n" + json.dumps(bad))
    samples = open_samples(path, None, form)
    assert samples.read(0) == good
    with pytest.raises(ShardDataError, match=rf"a.jsonl:2: .*{words}"):
        samples.read(1)
