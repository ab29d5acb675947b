"""The inbox: open decisions, one of them in full, and the answers to them."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.errors import DomainError, Invalid, NotFound
from jobs.models import Decision
from jobs.selectors.decisions import (
    ORDERS,
    SHOWS,
    approval_role,
    decision_counts,
    decision_full,
    decisions_listed,
    decisions_waiting,
)
from jobs.services.approvals import decision_approve, decision_reject
from webapp.pages.decision_detail import decision_detail, urgency_groups
from webapp.pages.door import PageRequest, fetch_in_team, must, page
from webapp.pages.forms.decisions import EditForm, RejectForm, args_shown
from webapp.pages.paging import chosen, paged

PER_PAGE = 50
ORDER_WORDS = [("cost", "cost of waiting"), ("ends", "end"), ("job", "job"), ("new", "newest")]


@page
def decisions(request: PageRequest) -> HttpResponse:
    context = _inbox(request, "open")
    first = context["page"].object_list[:1]
    selected = decision_full().get(pk=first[0].pk) if first else None
    return render(request, "pages/decisions.html", context | _detail(request, selected))


@page
def decision(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, decision_full(), key, team="team")
    show = next(name for name, statuses in SHOWS.items() if row.status in statuses)
    return render(request, "pages/decisions.html", _inbox(request, show) | _detail(request, row))


def _inbox(request: PageRequest, default_show: str) -> dict[str, Any]:
    """The list on the left."""
    show = chosen(request, "show", SHOWS, default_show)
    order = chosen(request, "order", ORDERS, "cost" if show == "open" else "new")
    rows = paged(request, decisions_listed(viewer=request.viewer, team=request.team, show=show, order=order), PER_PAGE)
    return {
        "nav": "decisions",
        "now": timezone.now(),
        "show": show,
        "order": order,
        "orders": ORDER_WORDS if show == "open" else [],
        "page": rows,
        "groups": urgency_groups(list(rows.object_list), timezone.now())
        if show == "open"
        else [("", rows.object_list)],
        "counts": decision_counts(team=request.team),
        "waiting": decisions_waiting(team=request.team),
    }


def _detail(request: PageRequest, row: Decision | None, **forms: Any) -> dict[str, Any]:
    """The decision on the right, with its forms (which may hold errors)."""
    if row is None:
        return {"decision": None}
    blank = {"edit_form": EditForm(row), "reject_form": RejectForm()}
    return {"decision": row} | decision_detail(row, request.role, timezone.now()) | blank | forms


def _to_answer(request: PageRequest, key: uuid.UUID) -> Decision:
    """The decision, if the person may answer it."""
    row = fetch_in_team(request, decision_full(), key, team="team")
    must(request, approval_role(decision=row))
    return row


def _answered(request: PageRequest, row: Decision, done: str) -> HttpResponse:
    messages.success(request, done)
    return redirect("decision", row.uuid)


def _again(request: PageRequest, row: Decision, status: int = 422, **forms: Any) -> HttpResponse:
    """The page once more, with what is wrong at its place."""
    return render(
        request, "pages/decisions.html", _inbox(request, "open") | _detail(request, row, **forms), status=status
    )


@require_POST
@page
def decision_yes(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _to_answer(request, key)
    form = EditForm(row, request.POST) if "edited" in request.POST else None
    if form is not None and not form.is_valid():
        return _again(request, row, edit_form=form)
    args = form.edited() if form is not None else None
    seen = args_shown(request.POST.get("seen", ""))
    try:
        decision_approve(decision=row, now=timezone.now(), user=request.user, args=args or None, seen_args=seen)
    except Invalid as error:
        form = form or EditForm(row)
        form.add_domain_error(error)
        return _again(request, row, edit_form=form)
    if row.status == "proposed":
        return _answered(request, row, f"Your yes to {row} is noted. One more approver has to say yes.")
    return _answered(request, row, f"{row} is approved. A worker carries it out now.")


@require_POST
@page
def decision_no(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _to_answer(request, key)
    form = RejectForm(request.POST)
    if not form.is_valid():
        return _again(request, row, reject_form=form)
    decision_reject(decision=row, now=timezone.now(), user=request.user, reason=form.cleaned_data["reason"])
    return _answered(request, row, f"{row} is rejected. Nothing is changed.")


@require_POST
@page
def decisions_bulk(request: PageRequest) -> HttpResponse:
    """Answer the selected decisions one by one; each refusal is told by itself."""
    answer, reason = request.POST.get("answer", ""), request.POST.get("reason", "")
    if answer not in ("approve", "reject"):
        raise NotFound("Choose approve or reject.")
    keys, done = request.POST.getlist("decision")[:PER_PAGE], 0
    for key in keys:
        try:
            row = _to_answer(request, uuid.UUID(key))
            _answer(request, row, answer, reason)
            done += 1
        except (DomainError, ValueError) as error:
            messages.error(request, getattr(error, "message", "That is not a decision."))
    if done or not keys:
        word = "approved" if answer == "approve" else "rejected"
        messages.success(request, f"{done} of {len(keys)} {word}." if keys else "Select at least one decision first.")
    return redirect(reverse("decisions"))


def _answer(request: PageRequest, row: Decision, answer: str, reason: str) -> None:
    if answer == "approve":
        decision_approve(decision=row, now=timezone.now(), user=request.user)
    else:
        decision_reject(decision=row, now=timezone.now(), user=request.user, reason=reason)
