"""A job that is held says why, and of which budget it was said that it is nearly spent."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0019_instance_running_at")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="budget_warned_usd",
            field=models.DecimalField(
                decimal_places=2,
                help_text="The budget of which it was said that it is nearly spent",
                max_digits=12,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="held_for",
            field=models.CharField(
                blank=True, help_text="Why the system has paused it, in words; empty: a person did", max_length=300
            ),
        ),
    ]
