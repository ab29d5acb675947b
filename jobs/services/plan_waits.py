"""Why a planned job has not what it wants, in the words that the queue, its page, its deadline's event and its report share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.models import Approval, Decision
from jobs.scheduler.procurement import ASK_KIND, MACHINES, ON_DEMAND
from jobs.selectors.duds import duds_in_a_row, hold_words

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from jobs.services.epochs import Planned

Waits = tuple[str, str]  # one of `jobs.models.plans.WAITS`, and in words; both empty where it lacks nothing


def waits_for(one: Planned, made: list[Decision]) -> Waits:
    """What the job lacks and who or what it waits for: first what people have to do, then what providers do not give."""
    if words := hold_words(duds_in_a_row(one.rows.machines)):
        return "held", words
    if one.gave_way is not None:
        back = f", back {one.gave_way['back']}" if one.gave_way.get("back") else ""
        return "gave_way", f"gave way to {one.gave_way['name']} ({one.gave_way['decision']}){back}"
    if one.placed.held_back:
        return "quota" if one.placed.held_back == one.frame.quota else "budget", _with_room(one, one.placed.held_back)
    if open_ask := _open_ask(one, made):
        return "approval", f"waits for an approval: {open_ask}"
    if wants_on_demand(one) and any(d.subject == ON_DEMAND for d in made):  # a rule has answered
        return "machines", f"machines are being started: {one.placed.facts.held} of {one.placed.wish.size}"
    code, words = _without_people(one)
    people = _people(one)
    if people and code in ("", "machines"):
        return "approval", "; ".join(part for part in (people, words) if part)
    return code, "; ".join(part for part in (people, words) if part)


def _open_ask(one: Planned, made: list[Decision]) -> Decision | None:
    """The decision about machines that waits for an answer, where the job lacks what it would bring."""
    for decision in (*made, *one.rows.asks):
        if decision.status != "proposed" or decision.kind == "preempt_job":
            continue
        if decision.subject == MACHINES and one.placed.facts.held < one.placed.today.size:
            return decision
        if decision.subject == ON_DEMAND and wants_on_demand(one):
            return decision
    return None


def wants_on_demand(one: Planned) -> bool:
    """Whether it needs on-demand now that nothing covers."""
    ask = one.placed.ask
    return ask is not None and not ask.standby and one.placed.today.size < one.placed.wish.size


def _people(one: Planned) -> str:
    """The rule that is off, or who said no."""
    if wants_on_demand(one):
        if ASK_KIND in one.off:
            return "needs on-demand, but the rule for switch_to_on_demand is off"
        if ASK_KIND in one.rows.noes:
            return one.no_words[ASK_KIND]
    if one.placed.facts.held < one.placed.today.size and (kinds := one.off - {ASK_KIND}):
        return f"the rule for {' and '.join(sorted(kinds))} is off"
    if one.placed.facts.held < one.placed.today.size and one.withheld:
        return one.no_words[one.withheld]
    return ""


def _without_people(one: Planned) -> Waits:
    """What the market or the provider withholds."""
    facts, wish = one.placed.facts, one.placed.today
    held, spot = facts.held, facts.spot
    refused = f" ({facts.refused})" if facts.refused else ""
    if not wish.size and spot is None:
        return "offer", _with_room(one, " ".join(part for part in ("waits for an offer", facts.allowed) if part))
    if not wish.size and spot is not None:
        return "spot", _with_room(one, f"waits for spot in {spot.name}: {spot.available} of {facts.n_min}{refused}")
    if held >= wish.size or one.off - {ASK_KIND} or one.withheld:
        return "", ""
    if spot is not None and spot.available < wish.spot:
        return "spot", f"waits for spot in {spot.name}: {spot.available} of {wish.spot}{refused}"
    if words := _refused_words(one):
        return "machines", f"has {held} of {wish.size} machines: {words}"
    return "machines", f"machines are being started: {held} of {wish.size}"


def _refused_words(one: Planned) -> str:
    """The offers that were asked for its machines and said no; on-demand, which is the last resort, first."""
    asked = [m for m in one.rows.machines if m.status == "requested" and m.asked.get("num") and m.offer is not None]
    offers = {m.offer: None for m in sorted(asked, key=lambda m: m.kind != "on_demand")}
    return ", ".join(
        f"{offer} {one.refusals[offer.pk].words}" for offer in offers if offer and offer.pk in one.refusals
    )


def _with_room(one: Planned, words: str) -> str:
    return "; ".join(part for part in (words, one.room) if part)


def noes_tell(*, planned: Iterable[Planned]) -> None:
    """Each job knows who refused its machines of late, and until when that holds. One query, none without a no."""
    noes = {no.decision.pk: (one, no) for one in planned for no in one.rows.noes.values()}
    if not noes:
        return
    answers = Approval.objects.filter(decision__in=noes, answer="reject", void_at=None).select_related("user")
    who = {answer.decision_id: answer.user for answer in answers}
    for pk, (one, no) in noes.items():
        decision = no.decision
        again_at = decision.status_at + dt.timedelta(seconds=one.frame.limits.window_s)
        sooner = "" if decision.kind == ASK_KIND or no.is_urgent else ", sooner if it cannot wait"
        one.no_words[decision.kind] = (
            f"{no_words(decision, who.get(pk))}; it is asked again from {again_at:%H:%M} UTC{sooner}"
        )


def no_words(decision: Decision, user: User | None) -> str:
    """Who refused on-demand or another change of machines, and when."""
    what = "on-demand" if decision.kind == ASK_KIND else decision.kind
    at = f"at {decision.status_at:%H:%M} UTC ({decision})"
    if user is None:
        return f"{what} was refused {at}: nobody answered in time"
    return f"{what} was refused by {user.get_full_name() or user.email or user.get_username()} {at}"
