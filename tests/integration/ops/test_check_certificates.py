"""What `sweeperd check` says of an endpoint's certificates, its CA and its proxy."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.ops.check.endpoints import check_endpoint
from sweeperd.ops.check.findings import CheckLevel
from tests.support.authority import Authority
from tests.support.forward_proxy import ForwardProxy
from tests.support.receiver import Receiver
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("bare_environment")

OK, WARNING, FAILURE = CheckLevel.OK, CheckLevel.WARNING, CheckLevel.FAILURE
Rows = dict[str, tuple[CheckLevel, str]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def rows(url: str, connect: float | None = 5.0, **settings: object) -> Rows:
    endpoint = EndpointSettings.model_validate({"name": "billing", "url": url} | settings)
    return {each.check: (each.level, each.says) for each in check_endpoint(endpoint, connect=connect)}


def test_all_is_well(authority: Authority) -> None:
    cert, key = authority.client()
    with Receiver(tls=authority.server(demands=True)) as receiver, ForwardProxy("user:p@ss") as proxy:
        settings: dict[str, Any] = {"ca": authority.ca(), "client_cert": cert, "client_key": key}
        for found in (
            rows(receiver.url, **settings),
            rows(receiver.url, proxy=proxy.url("user:p%40ss"), **settings),
        ):
            assert {check: level for check, (level, _) in found.items()} == dict.fromkeys(
                ("connectable", "client_cert", "ca", "certificate"), OK
            )
            assert "until 30" in found["certificate"][1]
        assert "proxy 127.0.0.1" in found["connectable"][1]
        assert "p@ss" not in str(found)
        assert len(proxy.passed) == 1
    assert not receiver.requests, "nothing is sent"


@pytest.mark.parametrize(("days", "level", "says"), [(20, WARNING, "20 days"), (-1, FAILURE, "expired")])
def test_a_client_certificate_that_expires(days: int, level: CheckLevel, says: str, authority: Authority) -> None:
    # A minute more, so that the days are whole ones.
    expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days, minutes=1)
    cert, key = authority.client(not_after=expiry)
    found = rows("https://localhost/", None, client_cert=cert, client_key=key)["client_cert"]
    assert (found[0], says in found[1]) == (level, True)


@pytest.mark.parametrize(
    ("server", "trusted", "reason"),
    [({"expired": True}, True, "expired"), ({}, False, "signed"), ({"demands": True}, True, "client certificate")],
)
def test_a_certificate_that_is_refused(
    server: dict[str, Any], trusted: bool, reason: str, authority: Authority
) -> None:
    with Receiver(tls=authority.server(**server)) as receiver:
        level, says = rows(receiver.url, ca=authority.ca() if trusted else None)["certificate"]
    assert (level, says[:3], reason in says) == (FAILURE, "TLS", True)


def test_a_proxy_that_refuses(authority: Authority) -> None:
    with Receiver(tls=authority.server()) as receiver, ForwardProxy("user:password") as proxy:
        level, says = rows(receiver.url, ca=authority.ca(), proxy=proxy.url())["certificate"]
    assert (level, "407" in says) == (FAILURE, True)


def test_a_proxy_that_is_not_there() -> None:
    found = rows("https://receiver.invalid/", proxy=f"http://127.0.0.1:{free_port()}")
    assert list(found) == ["connectable"]
    assert found["connectable"][0] is FAILURE
