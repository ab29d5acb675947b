"""The notices that leave the domain, always after commit. Receivers are best effort: rows are the truth.

`changed`: kwargs `team_id`, `job_id` (or None), `kind`, `subject_type`, `subject_uuid`, `event_id`. Heard by `webapp/live/`.
`whatif_queued`: kwargs `whatif_id`. Heard by `workers/doorbell.py`.
`reported`: kwargs `team_id`, `job_id`, `attempt_id`: new telemetry of an attempt. Heard by `webapp/live/`.
`command_issued`: kwargs `command_id`, `queue`. Heard by `workers/doorbell.py`.
"""

from django.dispatch import Signal

changed = Signal()
command_issued = Signal()
whatif_queued = Signal()
reported = Signal()
