"""What a planned job waits for as a code; until now it was read off the sentence."""

from typing import Any

from django.db import migrations, models

PREFIXES = {
    "team quota": "quota",
    "gave way": "gave_way",
    "waits for spot": "spot",
    "waits for an offer": "offer",
    "waits for an approval": "approval",
    "budget": "budget",
    "machines are being started": "machines",
}


def read_off(apps: Any, schema_editor: Any) -> None:
    rows = apps.get_model("jobs", "PlanState").objects
    for words, code in PREFIXES.items():
        rows.filter(waits_for__startswith=words).update(waits_on=code)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0017_evaluations")]

    operations = [
        migrations.AddField(
            model_name="planstate",
            name="waits_on",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "nothing"),
                    ("quota", "GPUs of its team"),
                    ("gave_way", "the end of the job that took its place"),
                    ("spot", "spot machines"),
                    ("offer", "an offer that its file allows"),
                    ("approval", "an answer"),
                    ("budget", "money"),
                    ("machines", "machines that are being started"),
                ],
                default="",
                help_text="What it lacks: one of WAITS",
                max_length=16,
            ),
            preserve_default=False,
        ),
        migrations.RunPython(read_off, migrations.RunPython.noop),
    ]
