"""Addresses of the pages."""

from django.urls import URLPattern, URLResolver, path

from webapp.pages import augmentations, datasets, decisions, events, jobs, overview, rules, team, theme, tokens

urlpatterns: list[URLPattern | URLResolver] = [
    path("", overview.overview, name="overview"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/new/", jobs.job_new, name="job_new"),
    path("jobs/<uuid:key>/", jobs.job, name="job"),
    path("jobs/<uuid:key>/report/", jobs.job_report, name="job_report"),
    path("jobs/<uuid:key>/log/", jobs.job_log, name="job_log"),
    path("jobs/<uuid:key>/shards/<str:name>/", datasets.job_shard, name="job_shard"),
    path("jobs/<uuid:key>/do/<slug:action>/", jobs.job_act, name="job_act"),
    path("datasets/", datasets.datasets, name="datasets"),
    path("datasets/new/", datasets.dataset_new, name="dataset_new"),
    path("datasets/<uuid:key>/", datasets.dataset, name="dataset"),
    path("datasets/<uuid:key>/upload/", datasets.dataset_upload, name="dataset_upload"),
    path("shards/<uuid:key>/", datasets.shard, name="shard"),
    path("decisions/", decisions.decisions, name="decisions"),
    path("decisions/answer/", decisions.decisions_bulk, name="decisions_bulk"),
    path("decisions/<uuid:key>/", decisions.decision, name="decision"),
    path("decisions/<uuid:key>/approve/", decisions.decision_yes, name="decision_yes"),
    path("decisions/<uuid:key>/reject/", decisions.decision_no, name="decision_no"),
    path("augmentations/<uuid:key>/stop/", augmentations.augmentation_stop, name="augmentation_stop"),
    path("augmentations/<uuid:key>/resume/", augmentations.augmentation_again, name="augmentation_again"),
    path("rules/", rules.rules, name="rules"),
    path("rules/<slug:kind>/", rules.rule_edit, name="rule_edit"),
    path("events/", events.events, name="events"),
    path("team/", team.team, name="team"),
    path("team/settings/", team.team_edit, name="team_edit"),
    path("team/switch/", team.team_switch, name="team_switch"),
    path("team/members/", team.member_new, name="member_new"),
    path("team/members/<uuid:key>/role/", team.member_role, name="member_role"),
    path("team/members/<uuid:key>/remove/", team.member_out, name="member_out"),
    path("team/tokens/", tokens.tokens, name="tokens"),
    path("team/tokens/<uuid:key>/rotate/", tokens.token_turn, name="token_turn"),
    path("team/tokens/<uuid:key>/revoke/", tokens.token_end, name="token_end"),
    path("theme/", theme.theme, name="theme"),
]
