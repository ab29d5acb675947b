"""What a job file may ask for: training settings, machines, snapshots, thresholds of rules."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings

from jobs.errors import Invalid
from jobs.machines import SPOT_POLICIES
from jobs.providers import AWS, has_machines, planned_backend
from jobs.scheduler.rules import completion, shard_loss, straggler
from jobs.selectors.graces import GRACE_S, HIGHEST_S, LOWEST_S
from jobs.services.methods import METHODS, preference_errors
from jobs.services.resources import resource_errors
from jobs.services.snapshot_places import uri_errors

RULE_SETTINGS: dict[str, Any] = {
    shard_loss.RULE: shard_loss.Settings(),
    straggler.RULE: straggler.Settings(),
    completion.RULE: completion.Settings(),
}
TRAINING_DEFAULTS: dict[str, Any] = {
    "global_batch": 16,
    "micro_batch": 8,
    "lr": 1e-3,
    "seq_len": 128,
    "seed": 1,
    "lora": 0,
    "snapshot_every": 100,
    "export_every": 100,
}
# Name -> (lowest, highest, whole number).
TRAINING_RANGES: dict[str, tuple[float, float, bool]] = {
    "global_batch": (1, 1_000_000, True),
    "micro_batch": (1, 100_000, True),
    "lr": (1e-9, 10.0, False),
    "seq_len": (8, 1_048_576, True),
    "seed": (0, 2**63 - 1, True),
    "lora": (0, 1024, True),  # rank of the adapters, 0 for full fine-tuning
    "snapshot_every": (0, 10_000_000, True),
    "export_every": (1, 10_000_000, True),
    "eval_every": (0, 10_000_000, True),  # steps between looks at held-out samples, 0 for none
    "eval_fraction": (0, 0.9, False),  # of each shard that is held out
    "loader_workers": (0, 64, True),  # threads of each worker that make micro-batches ahead, 0 for none
    "warmup_steps": (0, 10_000_000, True),
    "weight_decay": (0, 10.0, False),
    "max_grad_norm": (0, 1e9, False),  # to clip to, 0 for none
}
# Name -> what it may be; without one the launcher's own default holds.
TRAINING_CHOICES: dict[str, tuple[str, ...]] = {
    "parallel": ("ddp", "fsdp"),  # a copy of the model on each worker, or slices of it
    "method": METHODS,  # answers to imitate, or pairs of answers to prefer
    "layout": ("padded", "packed"),  # a row for each sample, or whole samples packed into rows
    "recompute": ("none", "layers"),  # activations that are computed again in the backward pass
    "dtype": ("fp32", "bf16"),  # of weights, moments and gradients
    "lr_schedule": ("constant", "constant_with_warmup", "linear", "cosine"),
    "on_nonfinite": ("skip", "apply", "stop"),  # a step whose gradient is not finite
}
FIDELITIES = ("exact", "same_world")  # what a resize keeps bit by bit, the first by default: see docs/trainer.md


def training_checked(training: dict[str, Any]) -> dict[str, Any]:
    """Training settings with defaults filled in. Raises `Invalid` naming each bad one."""
    errors: dict[str, list[str]] = {}
    for name, value in training.items():
        if name in TRAINING_CHOICES:
            if value not in TRAINING_CHOICES[name]:
                errors[name] = [f"One of {', '.join(TRAINING_CHOICES[name])}."]
        elif name not in TRAINING_RANGES:
            errors[name] = [f"Unknown. Known: {', '.join((*TRAINING_RANGES, *TRAINING_CHOICES))}."]
        else:
            low, high, whole = TRAINING_RANGES[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high or (whole and value != int(value)):
                errors[name] = [f"A {'whole ' if whole else ''}number from {low:g} to {high:g}."]
    if not errors and training.get("eval_every") and not training.get("eval_fraction"):
        errors["eval_fraction"] = ["Say which share of each shard is held out for evaluation, as 0.1."]
    if errors:
        raise Invalid("The training settings cannot be used.", fields={f"training.{k}": v for k, v in errors.items()})
    return {**TRAINING_DEFAULTS, **training}


def snapshot_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Training settings that a job file gives in its own section."""
    every = (config.get("snapshot") or {}).get("check_every")
    return {} if every is None else {"snapshot_every": every}


def job_file_checked(config: dict[str, Any], training: dict[str, Any], backend: str = "local") -> None:
    """Raise `Invalid` for parts of a job file that could not be honoured here: nothing that was asked for is silently dropped."""
    errors: dict[str, list[str]] = {}
    resources = config.get("resources") or {}
    errors |= resource_errors(resources, backend)
    policies = SPOT_POLICIES if backend != "local" or (backend == planned_backend() and has_machines()) else ()
    if backend == AWS and resources.get("spot_policy") not in policies:
        errors["resources.spot_policy"] = [
            f"A job on {AWS} runs on machines that are bought for it: {', '.join(policies)}."
        ]
    elif resources.get("spot_policy") not in (None, "on-demand", "auto", *policies):
        known = f"{', '.join(policies)}, on-demand or auto" if policies else "on-demand or auto"
        errors["resources.spot_policy"] = [f"No machines of this policy can be had here: {known}."]
    if (uri := (config.get("snapshot") or {}).get("uri")) and (wrong := uri_errors(str(uri), backend)):
        errors["snapshot.uri"] = wrong
    if (config.get("snapshot") or {}).get("fidelity", FIDELITIES[0]) not in FIDELITIES:
        errors["snapshot.fidelity"] = [f"One of {', '.join(FIDELITIES)}."]
    grace_s = (config.get("snapshot") or {}).get("grace_s", GRACE_S)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not LOWEST_S <= grace_s <= HIGHEST_S:
        errors["snapshot.grace_s"] = [f"Seconds, from {LOWEST_S:g} to {HIGHEST_S:g}."]
    errors |= preference_errors(config, training)
    if not django_settings.ALLOW_JOB_COMMANDS:
        for name in ("env", "setup", "run"):
            if config.get(name):
                errors[name] = [
                    "This server runs no commands of job files; its operator sets COUNTERFLOW_ALLOW_JOB_COMMANDS=1."
                ]
    errors |= _rule_errors(config.get("rules") or {})
    if errors:
        raise Invalid("The job file asks for what cannot be done here.", fields=errors)


def _rule_errors(rules: Any) -> dict[str, list[str]]:
    """What is wrong with the thresholds that a job sets for its rules."""
    if not isinstance(rules, dict) or not all(isinstance(r, dict) for r in rules.values()):
        return {"rules": ["A mapping of rule name to thresholds, as {shard_loss: {min_gap: 0.4}}."]}
    errors: dict[str, list[str]] = {}
    for rule, thresholds in rules.items():
        if rule not in RULE_SETTINGS:
            errors[f"rules.{rule}"] = [f"Unknown. Known: {', '.join(RULE_SETTINGS)}."]
            continue
        known = vars(RULE_SETTINGS[rule])
        for name, value in thresholds.items():
            whole = isinstance(known.get(name), int)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e9
            if name not in known:
                errors[f"rules.{rule}.{name}"] = [f"Unknown. Known: {', '.join(known)}."]
            elif not number or (whole and value != int(value)):
                errors[f"rules.{rule}.{name}"] = [f"A {'whole ' if whole else ''}number from 0 to 1e9."]
    return errors
