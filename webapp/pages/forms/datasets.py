"""Forms of datasets and uploads."""

from __future__ import annotations

from typing import Any

import yaml
from django import forms

from webapp.pages.forms.base import OnceField, PageForm

FORMATS = [("", "by the file's name"), ("jsonl", "JSONL"), ("csv", "CSV"), ("text", "text"), ("parquet", "Parquet")]


class DatasetForm(PageForm):
    """A name, and if wanted the shards from a configuration."""

    once = OnceField()
    name = forms.CharField(max_length=120, help_text="Unique in your team")
    description = forms.CharField(max_length=4000, required=False, widget=forms.Textarea(attrs={"rows": 3}))
    shard_config = forms.CharField(
        label="Shard configuration",
        required=False,
        max_length=2_000_000,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "class": "mono"}),
        help_text="YAML: shards: - {id, source, type, hardness_score, weight, provenance}. Leave empty to upload shard by shard.",
    )

    def clean_shard_config(self) -> Any:
        text = self.cleaned_data["shard_config"].strip()
        if not text:
            return None
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            place = getattr(error, "problem_mark", None)
            where = f" in line {place.line + 1}, column {place.column + 1}" if place else ""
            raise forms.ValidationError(f"This is not YAML{where}: {getattr(error, 'problem', error)}.") from None


class UploadForm(PageForm):
    """One file that becomes the newest revision of one shard."""

    domain_names = {"key": "key", "file": "file"}

    key = forms.CharField(label="Shard", max_length=120, help_text="Its id in trainers and files, as neuro_002")
    file = forms.FileField(
        help_text='JSONL, CSV, text or Parquet; samples {"prompt", "response"}, {"text"} or {"prompt", "chosen", "rejected"}'
    )
    file_format = forms.ChoiceField(label="Format", choices=FORMATS, required=False)
    category = forms.CharField(max_length=80, required=False, help_text="Shards that ought to behave alike")
    author = forms.CharField(max_length=200, required=False, help_text="Who made the data")
    license = forms.CharField(max_length=200, required=False)
    hardness_score = forms.FloatField(
        label="Hardness", initial=0.5, min_value=0, max_value=1, required=False, help_text="0 easy to 1 hard"
    )
    weight = forms.FloatField(initial=1.0, min_value=0, required=False, help_text="Sampling weight at a job's start")
    accept_partial = forms.BooleanField(label="Take the good lines if some are bad", required=False)

    def provenance(self) -> dict[str, str]:
        return {name: self.cleaned_data[name] for name in ("author", "license") if self.cleaned_data[name]}
