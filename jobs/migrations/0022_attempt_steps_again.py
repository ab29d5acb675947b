"""What the end of the attempt before has cost in steps."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0021_attempt_progress"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="steps_again",
            field=models.PositiveIntegerField(
                help_text="Steps that the attempt before had done and this one does again; null: not known", null=True
            ),
        ),
    ]
