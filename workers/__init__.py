"""The clock and the hands: Celery decides and drives, Dramatiq grinds. The database is the truth, the broker a doorbell."""
