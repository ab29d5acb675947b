"""What a test has committed is taken out again, row by row.

Django would truncate every table and fill its own anew: on PostgreSQL that is a new file for each, flushed to the disk.
"""

from __future__ import annotations

from django.apps import apps
from django.db import connection, transaction
from django.test import TransactionTestCase

STAY = ("contenttypes.ContentType", "auth.Permission")  # Django fills them when a database is made


def empty_database(_: TransactionTestCase) -> None:
    """Delete all rows of all models, after the transactions that still write. For `TransactionTestCase._fixture_teardown`."""
    quote = connection.ops.quote_name
    stay = {apps.get_model(name)._meta.db_table for name in STAY}
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [quote(name) for name in sorted(set(found) - stay)]
    with transaction.atomic(), connection.cursor() as cursor:  # references are checked at the end
        if connection.vendor == "postgresql":
            cursor.execute(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE")
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")
