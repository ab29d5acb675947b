"""What every provider of machines promises, on the simulated cloud (a process) and on EC2 (moto's server)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.machines.conftest import Provider as SimulatedCloud
from tests.machines.moto_cloud import REGION, TYPE, MotoCloud
from tests.services import wait_until
from trainer_client.backends import BackendError
from workers.machine_access import cloud, tag
from workers.provider import NoCapacity, Provider, Record


@dataclass
class Account:
    """A provider, what can be bought there, and how its faults are had."""

    provider: Provider
    places: dict[bool, dict[str, Any]]  # is it spot -> where
    fault: Callable[..., Any]
    interrupt: Callable[[str], Any]
    take: Callable[[str], Any]

    def create(self, token: str, *, is_spot: bool = True, tags: dict[str, str] | None = None) -> Record:
        key, _, value = tag().partition("=")
        return self.provider.create(token, is_spot=is_spot, tags={key: value, **(tags or {})}, **self.places[is_spot])

    def until(self, token: str, status: str) -> Record:
        """The machine, as soon as it has the status."""

        def look() -> Record | None:
            found = self.provider.describe(token)
            return found if found and found["status"] == status else None

        record: Record = wait_until(look, within_s=60, what=f"{token} is {status}", every_s=0.1)
        return record

    def tokens(self) -> list[str]:
        return [record["token"] for record in self.provider.machines(tag())]


@pytest.fixture
def simulated(provider: SimulatedCloud) -> Account:
    spot = {"region": "east-1", "zone": "east-1a", "instance_type": "v100-1x"}
    client = provider.client
    return Account(cloud(), {True: spot, False: spot | {"zone": ""}}, client.fault, client.interrupt, client.kill)


@pytest.fixture
def aws(moto_cloud: MotoCloud) -> Account:
    spot = {"region": REGION, "zone": f"{REGION}a", "instance_type": TYPE}
    places = {True: spot, False: spot | {"zone": ""}}
    return Account(cloud(), places, moto_cloud.fault, moto_cloud.interrupt, moto_cloud.kill)


@pytest.fixture(params=["simulated", "aws"])
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    found: Account = request.getfixturevalue(request.param)
    yield found
    for kind in ("capacity", "drop_create", "late", "refuse_delete"):
        found.fault(kind, 0)


@pytest.fixture
def token() -> str:
    return uuid.uuid4().hex


def test_a_token_is_one_machine_from_its_order_to_its_end(account: Account, token: str) -> None:
    made = account.create(token, tags={"job": "j1"})
    assert account.create(token, tags={"job": "j1"})["id"] == made["id"]
    runs = account.until(token, "running")
    assert (runs["id"], runs["tags"]["job"], runs["notice_at"]) == (made["id"], "j1", None)
    place = account.places[True]
    assert {name: runs["offer"].get(name, place[name]) for name in place} == place
    assert runs["offer"]["is_spot"]
    assert runs["started_at"] is not None
    assert account.tokens() == [token]
    assert account.provider.machines("counterflow=others") == []
    account.provider.terminate(token)
    over = account.until(token, "terminated")
    assert over["ended_at"] is None or over["ended_at"] >= over["started_at"] - 1
    again = account.provider.terminate(token)
    assert again is not None
    assert again["status"] == "terminated"


def test_on_demand_is_another_offer_of_the_region(account: Account, token: str) -> None:
    account.create(token, is_spot=False)
    record = account.until(token, "running")
    assert (record["offer"]["is_spot"], record["offer"]["zone"]) == (False, "")


def test_a_lost_answer_and_a_late_list_make_no_second_machine(account: Account, token: str) -> None:
    account.fault("late", 1, seconds=30)
    account.fault("drop_create", 3)  # a client that repeats by itself gets none of them
    with pytest.raises(BackendError) as lost:
        account.create(token)
    assert not lost.value.permanent
    assert not isinstance(lost.value, NoCapacity)
    account.fault("drop_create", 0)
    assert account.tokens() == []
    made = account.create(token)
    account.fault("late", 0)
    assert [record["id"] for record in account.provider.machines(tag())] == [made["id"]]


def test_where_there_is_none_that_is_said_and_nothing_is_made(account: Account, token: str) -> None:
    account.fault("capacity", 1)
    with pytest.raises(NoCapacity, match=r"to be had in .*1a"):
        account.create(token)
    assert account.tokens() == []
    account.create(token)
    assert account.tokens() == [token]


def test_a_notice_names_the_moment_and_a_machine_that_was_taken_has_ended(account: Account, token: str) -> None:
    account.create(token)
    account.until(token, "running")
    account.interrupt(token)
    noticed = wait_until(
        lambda: (found := account.provider.describe(token)) and found["notice_at"] and found, within_s=30, what="notice"
    )
    assert noticed["ends_by"] > noticed["notice_at"]
    account.take(token)
    account.until(token, "terminated")


def test_an_end_that_is_refused_may_be_asked_for_again(account: Account, token: str) -> None:
    account.create(token)
    account.until(token, "running")
    account.fault("refuse_delete", 3)
    with pytest.raises(BackendError):
        account.provider.terminate(token)
    account.fault("refuse_delete", 0)
    account.provider.terminate(token)
    account.until(token, "terminated")


def test_a_token_that_nobody_asked_for_is_not_known(account: Account, token: str) -> None:
    assert account.provider.describe(token) is None
    ended = account.provider.terminate(token)
    assert ended is None or ended["status"] == "terminated"
