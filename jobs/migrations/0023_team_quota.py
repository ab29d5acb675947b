"""The quota of a team counts every backend."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_attempt_steps_again")]

    operations = [
        migrations.AlterField(
            model_name="team",
            name="max_gpus",
            field=models.PositiveIntegerField(
                blank=True, help_text="GPUs that the jobs of the team may hold together; none: no limit", null=True
            ),
        ),
    ]
