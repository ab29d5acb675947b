from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_worker_times")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="boost",
            field=models.SmallIntegerField(default=0, help_text="Points on top of the priority; negative: demoted"),
        ),
        migrations.AddField(
            model_name="job", name="boost_reason", field=models.CharField(blank=True, max_length=300)
        ),
        migrations.AddField(
            model_name="planstate",
            name="priority",
            field=models.FloatField(
                default=0.0, help_text="Effective: jobs/scheduler/priority.py; the queue's order"
            ),
        ),
        migrations.RenameField(model_name="signalstate", old_name="data", new_name="completion"),
        migrations.AlterField(
            model_name="signalstate",
            name="completion",
            field=models.JSONField(default=dict, help_text="jobs.scheduler.completion.Completion, as last fitted"),
        ),
    ]
