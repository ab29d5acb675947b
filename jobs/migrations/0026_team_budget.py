"""A team has a budget for each month."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0025_market_past_ahead")]

    operations = [
        migrations.AddField(
            model_name="team",
            name="budget_usd",
            field=models.DecimalField(
                blank=True,
                decimal_places=2,
                help_text="What the machines of the team may cost in a calendar month of its clock; none: no limit",
                max_digits=12,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="team",
            name="budget_warned_for",
            field=models.CharField(
                blank=True, help_text="Month and budget of the last warning, as 2026-11 of 500.00", max_length=40
            ),
        ),
    ]
