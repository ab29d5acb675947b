from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0005_market_pages'),
    ]

    operations = [
        migrations.AddField(
            model_name='snapshot',
            name='loaded_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='loaded_parts',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='parts',
            field=models.JSONField(default=dict, help_text='Part of the state (moments, gradients, …) -> its digest'),
        ),
    ]
