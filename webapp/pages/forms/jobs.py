"""The form of a new job."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils import timezone

from forecasting.policies.registry import POLICIES
from jobs.clusters import backends
from jobs.machines import is_planned
from jobs.models import Dataset, Job
from jobs.providers import has_machines
from jobs.scheduler.priority import MAX_PRIORITY
from jobs.services.job_settings import TRAINING_DEFAULTS
from webapp.pages.forms.base import OnceField, PageForm
from webapp.pages.forms.moments import LocalMomentField, MomentForm

TRAINING_FIELDS = ("global_batch", "micro_batch", "lr", "seq_len", "seed", "lora", "snapshot_every", "export_every")

EVALUATION_FIELDS = ("eval_every", "eval_fraction")
PLANNED_FIELDS = ("spot_policy", "min_workers", "policy", "max_price", "regions")
SPOT_CHOICES = [
    ("prefer", "planned: spot where it can, on-demand where it must"),
    ("only", "planned: spot only"),
    ("never", "planned: on-demand only"),
]


class JobForm(MomentForm, PageForm):
    """Model, data, goal, deadline, budget, compute; the training settings start from their defaults."""

    domain_names = {"weights": "dataset"}

    once = OnceField()
    name = forms.CharField(max_length=120, help_text="As it will stand in lists, for example support-sft-1")
    dataset = forms.ModelChoiceField(Dataset.objects.none(), to_field_name="uuid", empty_label="Choose a dataset")
    model = forms.CharField(
        max_length=300, initial="tiny:4m", help_text="A path, a hub id, or tiny:4m for a small model made here"
    )
    goal_steps = forms.IntegerField(label="Steps", initial=600, min_value=1, help_text="Optimizer steps to do")
    goal_epochs = forms.FloatField(
        label="Epochs",
        required=False,
        min_value=0,
        help_text="In the place of steps: passes over the samples that the dataset holds now",
    )
    goal_loss = forms.FloatField(
        label="Target loss",
        required=False,
        help_text="Nats per token; the job ends when its loss gets there, at the latest after its steps",
    )
    deadline = LocalMomentField(required=False)
    budget_usd = forms.DecimalField(label="Budget, USD", required=False, min_value=0, max_digits=12, decimal_places=2)
    priority = forms.IntegerField(
        initial=0, min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, help_text="Higher goes first"
    )
    backend = forms.ChoiceField(choices=lambda: [(b, b) for b in backends()], help_text="Where the processes run")
    num_workers = forms.IntegerField(label="Workers", initial=2, min_value=1, help_text="Processes that train together")
    spot_policy = forms.ChoiceField(
        label="Machines",
        choices=[("", "as many workers as said here"), *SPOT_CHOICES],
        required=False,
        help_text="Planned, on the local backend: bought and given back while it runs, by deadline, budget and market",
    )
    min_workers = forms.IntegerField(
        label="At least, workers",
        required=False,
        min_value=1,
        help_text="Of a planned job; the workers above are its most",
    )
    policy = forms.ChoiceField(
        choices=lambda: [("", "the selector: what has done best on the market"), *((name, name) for name in POLICIES)],
        required=False,
        help_text="Which policy decides for a planned job what to hold; the deadline guard is round each",
    )
    max_price = forms.FloatField(
        label="Price at most", required=False, min_value=0, help_text="USD an hour for one machine, spot or on-demand"
    )
    regions = forms.CharField(
        required=False, max_length=400, help_text="Where machines may stand, with commas; empty: anywhere"
    )
    method = forms.ChoiceField(
        choices=[("sft", "sft: answers to imitate"), ("dpo", "dpo: pairs of answers to prefer")],
        required=False,
        help_text="What the samples are; dpo needs trl beside the trainer",
    )
    parallel = forms.ChoiceField(
        label="Parallelism",
        choices=[("ddp", "ddp: a copy of the model on each worker"), ("fsdp", "fsdp: a slice of it on each")],
        required=False,
        help_text="Slices hold a model that is too large for one GPU",
    )
    layout = forms.ChoiceField(
        choices=[("padded", "padded: a row for each sample"), ("packed", "packed: samples share rows")],
        required=False,
        help_text="Packed lays the samples of a micro-batch into few rows, which saves padding; sft only",
    )
    dtype = forms.ChoiceField(
        label="Numbers",
        choices=[("fp32", "fp32: 4 bytes each"), ("bf16", "bf16: 2 bytes each")],
        required=False,
        help_text="What weights, moments and gradients are held in; bf16 takes about half the memory",
    )
    recompute = forms.ChoiceField(
        label="Activations",
        choices=[("none", "kept for the backward pass"), ("layers", "computed again, layer by layer")],
        required=False,
        help_text="Computed again they take less memory and more time; no bit changes",
    )
    global_batch = forms.IntegerField(label="Global batch", help_text="Samples of one step, over all workers")
    micro_batch = forms.IntegerField(label="Micro-batch", help_text="Samples that one worker holds at once")
    lr = forms.FloatField(label="Learning rate")
    seq_len = forms.IntegerField(label="Sequence length", help_text="Tokens; longer samples are cut")
    seed = forms.IntegerField(help_text="Same seed, same order of samples")
    export_every = forms.IntegerField(label="Export every", help_text="Steps between weight exports for augmentation")
    lora = forms.IntegerField(label="LoRA rank", min_value=0, max_value=1024, help_text="0 trains all weights")
    snapshot_every = forms.IntegerField(label="Snapshot every", min_value=0, help_text="Steps; 0 takes none")
    fidelity = forms.ChoiceField(
        choices=[
            ("", "exact: equal bits"),
            ("exact", "exact, and the same threads in every world"),
            ("same_world", "same_world: equal with as many workers"),
        ],
        required=False,
        help_text="What a resize keeps; exact holds a few gradients in memory while it adds, same_world only one",
    )
    eval_every = forms.IntegerField(
        label="Evaluate every",
        required=False,
        min_value=0,
        help_text="Steps; a target is then that of held-out samples",
    )
    eval_fraction = forms.FloatField(
        label="Held out", required=False, min_value=0, max_value=0.9, help_text="Share of each shard, as 0.1"
    )

    def __init__(self, *args: Any, datasets: QuerySet[Dataset], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["dataset"].queryset = datasets  # type: ignore[attr-defined]
        for name in TRAINING_FIELDS:
            self.fields[name].initial = TRAINING_DEFAULTS[name]
        if not has_machines():
            for name in PLANNED_FIELDS:
                del self.fields[name]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        low, high = data.get("min_workers"), data.get("num_workers")
        if low and high and low > high:
            self.add_error("min_workers", f"At most the {high} workers above.")
        return data

    def config(self) -> dict[str, Any]:
        """The parts of a job file that are not arguments of `job_create`."""
        fidelity = self.cleaned_data.get("fidelity")
        epochs = self.cleaned_data.get("goal_epochs")
        goal = {"goal": {"epochs": epochs}} if epochs else {}
        return ({"snapshot": {"fidelity": fidelity}} if fidelity else {}) | goal | self._resources()

    def _resources(self) -> dict[str, Any]:
        """How machines come and go; empty for a job whose size is given by hand."""
        policy, most = self.cleaned_data.get("spot_policy"), self.cleaned_data["num_workers"]
        if not policy:
            return {}
        nodes = {"min": self.cleaned_data.get("min_workers") or 1, "max": most}
        regions = [word.strip() for word in self.cleaned_data["regions"].split(",") if word.strip()]
        wanted = {
            "policy": self.cleaned_data["policy"] or None,
            "max_price": self.cleaned_data["max_price"],
            "regions": regions or None,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        return {"resources": {"spot_policy": policy, "nodes": nodes, **given}}

    def training(self) -> dict[str, Any]:
        """The settings for `job_create(training=…)`."""
        usual = {"method": "sft", "parallel": "ddp", "layout": "padded", "dtype": "fp32", "recompute": "none"}
        chosen = {name: value for name in usual if (value := self.cleaned_data.get(name)) and value != usual[name]}
        looks = {name: value for name in EVALUATION_FIELDS if (value := self.cleaned_data.get(name))}
        return {name: self.cleaned_data[name] for name in TRAINING_FIELDS} | chosen | looks

    def arguments(self) -> dict[str, Any]:
        """The other arguments of `job_create`."""
        names = [
            "name",
            "dataset",
            "model",
            "goal_steps",
            "goal_loss",
            "deadline",
            "budget_usd",
            "priority",
            "backend",
            "num_workers",
        ]
        epochs = self.cleaned_data.get("goal_epochs")
        given = {name: self.cleaned_data[name] for name in names}
        return given | ({"goal_steps": None, "goal_epochs": epochs} if epochs else {})


class JobChangeForm(MomentForm, PageForm):
    """What may be changed of a job that is written already; an empty field is no limit."""

    deadline = LocalMomentField(required=False)
    budget_usd = forms.DecimalField(label="Budget, USD", required=False, min_value=0, max_digits=12, decimal_places=2)
    policy = forms.CharField(required=False, max_length=40, help_text="selector, or a policy by name")
    max_price = forms.FloatField(label="Price at most, USD an hour", required=False, min_value=0)
    regions = forms.CharField(required=False, max_length=400, help_text="With commas; empty: anywhere")

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        resources = job.config.get("resources") or {}
        deadline = timezone.localtime(job.deadline).strftime("%Y-%m-%dT%H:%M") if job.deadline else ""
        initial = {
            "deadline": deadline,
            "budget_usd": job.budget_usd,
            "policy": resources.get("policy") or "selector",
            "max_price": resources.get("max_price"),
            "regions": ", ".join(resources.get("regions") or []),
        }
        super().__init__(*args, initial=initial, prefix="change", **kwargs)
        if not is_planned(job):
            for name in ("policy", "max_price", "regions"):
                del self.fields[name]

    def changes(self) -> dict[str, Any]:
        """The arguments of `job_change`: only what was touched."""
        found = {name: self.cleaned_data[name] for name in self.changed_data}
        if "regions" in found:
            found["regions"] = [word.strip() for word in found["regions"].split(",") if word.strip()]
        return {name: None if value in ("", []) else value for name, value in found.items()}


class ReasonForm(PageForm):
    """Why."""

    reason = forms.CharField(max_length=1000, required=False, widget=forms.Textarea(attrs={"rows": 3}))
