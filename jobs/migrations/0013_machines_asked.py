from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0012_plans'),
    ]

    operations = [
        migrations.AddField(
            model_name='instance',
            name='asked',
            field=models.JSONField(default=dict, help_text='What the provider answered while there was none: num, again_at, answer'),
        ),
    ]
