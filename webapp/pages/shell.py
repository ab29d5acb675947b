"""What every page shows around its content: menu, team, person, theme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from jobs.access import role_reaches
from jobs.models import ROLES
from jobs.selectors.decisions import num_open_decisions

THEMES = ("system", "light", "dark")
THEME_COOKIE = "theme"


@dataclass(frozen=True)
class NavItem:
    """One entry of the menu. `url` is a URL name; `section` is what pages set as `nav` to be marked current."""

    label: str
    url: str
    section: str


# A new page joins the menu with one line here.
NAV = (
    NavItem("Overview", "overview", "overview"),
    NavItem("Jobs", "jobs", "jobs"),
    NavItem("Decisions", "decisions", "decisions"),
    NavItem("Datasets", "datasets", "datasets"),
    NavItem("Market", "market", "market"),
    NavItem("What-if", "whatif", "whatif"),
    NavItem("Fleet", "fleet", "fleet"),
    NavItem("Costs", "costs", "costs"),
    NavItem("Rules", "rules", "rules"),
    NavItem("Events", "events", "events"),
    NavItem("Team", "team", "team"),
)

STYLES = [  # in this order; `small` overrides the others
    "variables",
    "base",
    "shell",
    "layout",
    "card",
    "button",
    "badge",
    "table",
    "list",
    "decision",
    "meter",
    "form",
    "notice",
    "chart",
    "market",
    "small",
]


def theme_of(request: HttpRequest) -> str:
    """The theme this browser chose: system, light or dark."""
    theme = request.COOKIES.get(THEME_COOKIE, "system")
    return theme if theme in THEMES else "system"


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context processor for `layouts/base.html`."""
    context: dict[str, Any] = {"theme": theme_of(request), "themes": THEMES, "styles": STYLES}
    team = getattr(request, "team", None)
    if team is None:
        return context
    role = getattr(request, "role", "viewer")
    return context | {
        "nav_items": NAV,
        "team": team,
        "role": role,
        "can": {name: role_reaches(role, name) for name in ROLES},
        "my_teams": [m.team for m in request.viewer.members],  # type: ignore[attr-defined]
        "num_open_decisions": num_open_decisions(team=team),
    }
