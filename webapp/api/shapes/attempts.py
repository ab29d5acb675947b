"""Attempts with their workers, and the snapshots that they wrote."""

from __future__ import annotations

from rest_framework import serializers

from webapp.api.shapes.fields import RowShape, StatefulShape


class AttemptShape(StatefulShape):
    job = serializers.UUIDField(source="job.uuid", read_only=True)
    fence = serializers.IntegerField(help_text="1, 2, 3, … within the job; the highest may write")
    world_size = serializers.IntegerField()
    places = serializers.ListField(
        child=serializers.IntegerField(), help_text="Machine or GPU of each rank; empty: 0, 1, 2, …"
    )
    start_step = serializers.IntegerField()
    last_step = serializers.IntegerField(help_text="-1 before the first")
    steps_again = serializers.IntegerField(
        allow_null=True, help_text="Steps that the attempt before had done and this one does again; null: not known"
    )
    resumed_from = serializers.UUIDField(source="resumed_from.uuid", read_only=True, allow_null=True)
    capabilities = serializers.JSONField()
    versions = serializers.JSONField()
    running_at = serializers.DateTimeField(allow_null=True)
    heartbeat_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    detail = serializers.CharField()
    totals = serializers.JSONField()


class WorkerShape(RowShape):
    rank = serializers.IntegerField()
    host = serializers.CharField()
    last_seq = serializers.IntegerField()
    last_step = serializers.IntegerField()
    heartbeat_at = serializers.DateTimeField(allow_null=True)
    step_time_s = serializers.FloatField(allow_null=True, help_text="Wall time of a step, smoothed")
    micro_time_s = serializers.FloatField(
        allow_null=True, help_text="Its own time for one micro-batch, without waiting for other workers"
    )
    num_micro = serializers.FloatField(allow_null=True, help_text="Micro-batches of its newest step")
    system = serializers.JSONField()


class AttemptFull(AttemptShape):
    workers = WorkerShape(many=True)


class SnapshotShape(StatefulShape):
    job = serializers.UUIDField(source="job.uuid", read_only=True)
    attempt = serializers.UUIDField(source="attempt.uuid", read_only=True)
    name = serializers.CharField()
    kind = serializers.CharField(help_text="gradient or weights")
    step = serializers.IntegerField()
    micro_step = serializers.IntegerField()
    world_size = serializers.IntegerField()
    uri = serializers.CharField()
    num_bytes = serializers.IntegerField()
    save_s = serializers.FloatField(allow_null=True, help_text="Seconds from its beginning until it was read back")
    digest = serializers.CharField()
    loaded_digest = serializers.CharField(help_text="As loaded by the newest attempt that resumed from it")
    proof = serializers.CharField(help_text="equal, different, or empty while no attempt has resumed from it")
    parts = serializers.DictField(child=serializers.CharField(), help_text="Digest of each part of the state")
    loaded_parts = serializers.DictField(child=serializers.CharField())
    loaded_at = serializers.DateTimeField(allow_null=True)
    detail = serializers.CharField()
