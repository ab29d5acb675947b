"""What a save took, so that the workers get the time for the next one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0023_team_quota"),
    ]

    operations = [
        migrations.AddField(
            model_name="snapshot",
            name="save_s",
            field=models.FloatField(help_text="Seconds from its beginning until it was read back", null=True),
        ),
    ]
