"""When an attempt was last heard, made a step, or said that it does something else: what a hang is told by."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0020_job_holds"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="busy_at",
            field=models.DateTimeField(
                help_text="When a worker last said that it evaluates, saves or holds", null=True
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="heard_since",
            field=models.DateTimeField(help_text="Since when its reports come without a gap", null=True),
        ),
        migrations.AddField(
            model_name="attempt",
            name="stepped_at",
            field=models.DateTimeField(help_text="When its newest step was reported", null=True),
        ),
    ]
