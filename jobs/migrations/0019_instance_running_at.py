"""When a bought machine was first seen to run, and that a job may be held after machines without a word."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0018_plan_waits_on")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="running_at",
            field=models.DateTimeField(
                help_text="When it was first seen to run: a bought one can work from then on", null=True
            ),
        ),
        migrations.AlterField(
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
                    ("held", "a person to see why no agent spoke on its machines"),
                ],
                help_text="What it lacks: one of WAITS",
                max_length=16,
            ),
        ),
    ]
