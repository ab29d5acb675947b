"""The clock and the hands: Celery decides and drives, Dramatiq grinds. The broker is a doorbell, rows are the truth."""
