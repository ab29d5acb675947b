"""Datasets, shards, revisions, uploads, samples."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from webapp.api.shapes.fields import Input, Named, PersonField, RowShape


class DatasetShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    name = serializers.CharField()
    description = serializers.CharField()
    created_by = PersonField(read_only=True, allow_null=True)
    num_shards = serializers.IntegerField()


class DatasetNew(Input):
    team = serializers.UUIDField(required=False)
    name = serializers.CharField(max_length=120)
    description = serializers.CharField(max_length=10_000, required=False, allow_blank=True, default="")


class RevisionShape(RowShape):
    shard = serializers.UUIDField(source="shard.uuid", read_only=True)
    number = serializers.IntegerField()
    sha256 = serializers.CharField()
    num_samples = serializers.IntegerField()
    num_bytes = serializers.IntegerField()
    origin = serializers.CharField(help_text="upload, config, rest, augmentation")
    parent = serializers.UUIDField(source="parent.uuid", read_only=True, allow_null=True)  # type: ignore[assignment]
    augmentation = serializers.UUIDField(source="augmentation.uuid", read_only=True, allow_null=True)
    provenance = serializers.JSONField()


class ShardShape(RowShape):
    dataset = Named(read_only=True)
    key = serializers.CharField()
    category = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    provenance = serializers.JSONField()
    hardness_score = serializers.FloatField(help_text="0 easy to 1 hard")
    weight = serializers.FloatField(help_text="Sampling weight at the start of a job")
    num_samples = serializers.IntegerField(allow_null=True, help_text="In the newest revision; null before the first")
    num_revisions = serializers.IntegerField()


class ShardNew(Input):
    dataset = serializers.UUIDField()
    key = serializers.CharField(max_length=120)
    category = serializers.CharField(max_length=80, required=False, allow_blank=True, default="")
    source = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")  # type: ignore[assignment]
    provenance = serializers.DictField(required=False)
    hardness_score = serializers.FloatField(min_value=0, max_value=1, default=0.5)
    weight = serializers.FloatField(min_value=0, max_value=1e6, default=1.0)


class RevisionNew(Input):
    samples = serializers.ListField(
        child=serializers.DictField(),
        allow_empty=False,
        max_length=20_000,
        help_text='Each {"prompt", "response"}, {"text"} or {"prompt", "chosen", "rejected"}, with an optional id and '
        "provenance fields",
    )
    provenance = serializers.DictField(required=False)


class ShardConfig(Input):
    shards = serializers.ListField(
        child=serializers.JSONField(),
        help_text="Entries {id, source, type, size_mb, hardness_score, weight, path, provenance} of shard_config.yaml",
    )


class ShardConfigResult(serializers.Serializer[Any]):
    created = serializers.ListField(child=serializers.CharField(), help_text="Keys of the shards made")
    known = serializers.ListField(child=serializers.CharField(), help_text="Keys of shards that were there")
    waiting = serializers.ListField(
        child=serializers.CharField(), help_text="Keys whose samples are yet to be uploaded"
    )


class BadLine(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    reason = serializers.CharField()


class UploadShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    dataset = serializers.UUIDField(source="dataset.uuid", read_only=True)
    shard_key = serializers.CharField()
    file_name = serializers.CharField()
    user = PersonField(read_only=True, allow_null=True)
    accepted = serializers.BooleanField()
    num_samples = serializers.IntegerField()
    num_bytes = serializers.IntegerField()
    num_bad = serializers.IntegerField()
    bad_lines = BadLine(many=True, help_text="The first 20")


class UploadDone(UploadShape):
    revision = RevisionShape(allow_null=True)


class UploadForm(Input):
    file = serializers.FileField()


class UploadQuery(Input):
    dataset = serializers.UUIDField()
    shard = serializers.CharField(max_length=120, help_text="Key of the shard; made if there is none")
    file_name = serializers.CharField(max_length=255, required=False, default="")
    format = serializers.CharField(max_length=16, required=False, default="", help_text="jsonl, csv, text or parquet")
    accept_partial = serializers.BooleanField(default=False, help_text="Take the good lines although some are bad")
    category = serializers.CharField(max_length=80, required=False, default="")


class SamplesPage(serializers.Serializer[Any]):
    num_samples = serializers.IntegerField()
    offset = serializers.IntegerField()
    samples = serializers.ListField(child=serializers.DictField())
