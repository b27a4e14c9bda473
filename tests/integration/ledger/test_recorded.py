"""Two thousand recorded operations of Cycles' own scripts: the ledger gives the same answers and the same balances."""

import contextlib
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd import ledger
from sweeperd.ledger import AsyncLedger, Committed, Debited, Extended, Ledger, LedgerError, OveragePolicy, Reserved
from tests.support.blocking import blocking
from tests.support.servers import Server

RECORD = Path(__file__).parents[2] / "fixture" / "cycles" / "ledger.jsonl"
#: What Cycles names each refusal. INVALID_REQUEST is a ValueError of the argument.
REFUSALS: Mapping[str, tuple[type[Exception], ...]] = {
    "BUDGET_CLOSED": (ledger.BudgetClosed,),
    "BUDGET_EXCEEDED": (ledger.InsufficientBudget, ledger.EstimateExceeded),
    "BUDGET_FROZEN": (ledger.BudgetFrozen,),
    "BUDGET_NOT_FOUND": (ledger.NoBudget,),
    "DEBT_OUTSTANDING": (ledger.DebtOutstanding,),
    "IDEMPOTENCY_MISMATCH": (ledger.IdempotencyMismatch,),
    "INTERNAL_ERROR": (ledger.InvalidTenant,),
    "INVALID_REQUEST": (ValueError,),
    "MAX_EXTENSIONS_EXCEEDED": (ledger.TooManyExtensions,),
    "NOT_FOUND": (ledger.ReservationNotFound,),
    "OVERDRAFT_LIMIT_EXCEEDED": (ledger.OverLimit, ledger.OverdraftLimitExceeded),
    "RESERVATION_FINALIZED": (ledger.ReservationFinalized,),
    "TENANT_CLOSED": (ledger.TenantClosed,),
    "UNIT_MISMATCH": (ledger.UnitMismatch,),
}
AMOUNTS = ("remaining", "reserved", "spent", "debt")
Line = Mapping[str, Any]


class Replay:
    """Does what each line says through the ledger, and compares."""

    def __init__(self, book: Ledger, client: Any) -> None:
        self._book = book
        self._client = client
        self._reserved: dict[str, Reserved] = {}
        self._answers: dict[tuple[str, str], object] = {}
        self.budgets: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, Callable[[Line], Any]] = {
            "reserve": self._reserve,
            "commit": self._commit,
            "release": self._release,
            "extend": self._extend,
            "event": self._event,
        }

    def begin(self, header: Line) -> None:
        """Write the budgets and the tenants' records."""
        for budget in header["budgets"]:
            self._client.hset(budget["key"], mapping=budget["fields"])
            self.budgets[budget["key"]] = self._read([budget["key"]])[budget["key"]]
        for tenant in header["tenants"]:
            self._client.set(tenant["key"], tenant["value"])

    def step(self, line: Line) -> list[str]:
        """One operation. Returns what differs from the record."""
        if line["op"] == "admin":
            self._administer(line)
            return []
        found = self._operate(line)
        self.budgets |= line["budgets"]
        now = self._read(list(self.budgets))
        found += [f"{key}: {now[key]}, not {told}" for key, told in self.budgets.items() if now[key] != told]
        return [f"{line['n']} {line['op']}: {text}" for text in found]

    def _operate(self, line: Line) -> list[str]:
        expected = line["result"]
        try:
            answer = self._operations[line["op"]](line)
        except (LedgerError, ValueError) as error:
            scope = error.detail.decode() if isinstance(error, LedgerError) else ""
            if type(error) not in REFUSALS.get(expected.get("error"), ()):
                return [f"{error!r}, not {expected}"]
            return [f"{scope!r} refuses, not {expected}"] if expected.get("scope", scope) != scope else []
        if "error" in expected:
            return [f"{answer}, not {expected}"]
        before = self._answers.setdefault((line["op"], line["idempotency_key"]), answer)
        same = before == answer or (isinstance(before, Extended) and self._extended_since(before, answer))
        if bool(expected.get("replay")) != (before is not answer) or not same:
            return [f"{answer}, not {before}"]
        told = self._told(line, answer)
        wanted = {name: value for name, value in expected.items() if name in told}
        return [f"{told}, not {wanted}"] if told != wanted else []

    @staticmethod
    def _extended_since(before: Extended, answer: Extended) -> bool:
        """Whether only the count of extensions differs: an answer that is repeated has the present one."""
        return dataclasses.replace(before, extension_count=answer.extension_count) == answer

    def _told(self, line: Line, answer: Any) -> dict[str, int]:
        """The numbers in an answer, as the record names them."""
        if isinstance(answer, Committed | Debited):
            return {"charged": answer.charged, "debt_incurred": answer.debt_incurred}
        if line["op"] == "extend":
            done = self._reserved[line["reservation"]]
            return {
                "expires_after_ms": answer.expires_at - done.created_at,
                "extension_count": answer.extension_count,
            }
        return {}

    def _read(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hmget(key, *AMOUNTS, "is_over_limit")
        return {
            key: dict(zip(AMOUNTS, map(int, amounts), strict=True)) | {"is_over_limit": over == b"true"}
            for key, (*amounts, over) in zip(keys, pipeline.execute(), strict=True)
        }

    def _administer(self, line: Line) -> None:
        """What an operator did is written as it is."""
        for key, fields in line.get("set", {}).items():
            self._client.hset(key, mapping=fields)
            self.budgets |= self._read([key])
        if tenant := line.get("set_tenant"):
            self._client.set(tenant["key"], tenant["value"])

    def _id(self, line: Line) -> bytes:
        done = self._reserved.get(line["reservation"])
        return done.reservation_id.encode() if done else b"missing"

    def _reserve(self, line: Line) -> Reserved:
        done = self._book.reserve(
            line["tenant"],
            line["scopes"],
            line["unit"],
            line["amount"],
            ttl=timedelta(milliseconds=line["ttl_ms"]),
            grace=timedelta(milliseconds=line["grace_ms"]),
            overage_policy=OveragePolicy(line["overage_policy"]),
            max_extensions=line["max_extensions"],
            idempotency_key=line["idempotency_key"],
        )
        assert self._reserved.setdefault(line["reservation"], done) == done
        return done

    def _commit(self, line: Line) -> object:
        return self._book.commit(
            line["tenant"],
            self._id(line),
            line["actual"],
            unit=line["unit"],
            idempotency_key=line["idempotency_key"],
        )

    def _release(self, line: Line) -> object:
        return self._book.release(line["tenant"], self._id(line), idempotency_key=line["idempotency_key"])

    def _extend(self, line: Line) -> object:
        by = timedelta(milliseconds=line["extend_by_ms"])
        return self._book.extend(line["tenant"], self._id(line), by, idempotency_key=line["idempotency_key"])

    def _event(self, line: Line) -> object:
        return self._book.event(
            line["tenant"],
            line["scopes"],
            line["unit"],
            line["amount"],
            overage_policy=OveragePolicy(line["overage_policy"]),
            idempotency_key=line["idempotency_key"],
        )


@pytest.fixture(params=["threads", "asyncio"])
def replay(request: pytest.FixtureRequest, server: Server, client: redis.Redis) -> Iterator[Replay]:
    url = server.url
    book = Ledger.from_url(url) if request.param == "threads" else blocking(lambda: AsyncLedger.from_url(url))
    with contextlib.closing(book):
        yield Replay(book, client)


def test_none_of_two_thousand_operations_differs(replay: Replay, client: Any) -> None:
    header, *lines = (json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines())
    replay.begin(header)
    found = list(itertools.chain.from_iterable(replay.step(line) for line in lines))
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:40])
    assert len(lines) == header["operations"] == 2000
    kinds = Counter((line["op"], line["result"].get("error", "ok")) for line in lines)
    assert kinds["reserve", "ok"] > 400
    assert kinds["commit", "ok"] > 250
    assert set(REFUSALS) == {error for _, error in kinds} - {"ok"}
    assert sum(row["remaining"] < 0 for line in lines for row in line["budgets"].values()) > 60
    for key, row in replay.budgets.items():
        allocated = int(client.hget(key, "allocated"))
        assert row["remaining"] == allocated - row["spent"] - row["reserved"] - row["debt"], key
