"""The domain's tables. Import models from here; write them only through `jobs/services/`."""

from jobs.models.augmentations import Augmentation, AugmentationBatch
from jobs.models.commands import Command, Directive
from jobs.models.datasets import Dataset, Shard, ShardRevision
from jobs.models.decisions import AUTONOMY, Approval, Decision, Rule
from jobs.models.evaluations import Evaluation
from jobs.models.events import Event
from jobs.models.hardness import HardnessRecord
from jobs.models.instances import Instance, Orphan, Placement
from jobs.models.jobs import Attempt, Job, JobShard, Worker
from jobs.models.market import (
    FeedGap,
    FeedState,
    MarketForecast,
    MarketPast,
    MarketSeriesScore,
    Offer,
    PolicyWeights,
    QuarantinedQuote,
    Quote,
)
from jobs.models.notifications import Notification, NotificationTarget
from jobs.models.operations import Heartbeat, IdempotencyKey, PeriodicRun, Upload
from jobs.models.plans import PlanPoint, PlanState
from jobs.models.reports import Report, ShardBin, SignalState, WorkerBin
from jobs.models.snapshots import Snapshot
from jobs.models.teams import ROLES, SCOPES, ApiToken, Member, Team
from jobs.models.whatif import WhatIf

__all__ = [
    "AUTONOMY",
    "ROLES",
    "SCOPES",
    "ApiToken",
    "Approval",
    "Attempt",
    "Augmentation",
    "AugmentationBatch",
    "Command",
    "Dataset",
    "Decision",
    "Directive",
    "Evaluation",
    "Event",
    "FeedGap",
    "FeedState",
    "HardnessRecord",
    "Heartbeat",
    "IdempotencyKey",
    "Instance",
    "Job",
    "JobShard",
    "MarketForecast",
    "MarketPast",
    "MarketSeriesScore",
    "Member",
    "Notification",
    "NotificationTarget",
    "Offer",
    "Orphan",
    "PeriodicRun",
    "Placement",
    "PlanPoint",
    "PlanState",
    "PolicyWeights",
    "QuarantinedQuote",
    "Quote",
    "Report",
    "Rule",
    "Shard",
    "ShardBin",
    "ShardRevision",
    "SignalState",
    "Snapshot",
    "Team",
    "Upload",
    "WhatIf",
    "Worker",
    "WorkerBin",
]
