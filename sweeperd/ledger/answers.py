"""Reads the JSON that the ledger's scripts answer with."""

import json
from typing import Any

from sweeperd.ledger.models import Balance
from sweeperd.text import decode


class LedgerAnswer:
    """
    One answer. Numbers are decimal text in it, because a JSON number of Lua is a double.

    Names need not be UTF-8: other bytes become lone surrogates in the JSON's text, and bytes again here.
    """

    def __init__(self, text: bytes) -> None:
        self._fields: dict[str, Any] = json.loads(text.decode("utf-8", "surrogateescape"))

    def number(self, field: str) -> int:
        """A whole number."""
        return int(self._fields[field])

    def name(self, field: str) -> bytes:
        """A name."""
        return _bytes(self._fields[field])

    @property
    def missing(self) -> tuple[bytes, ...]:
        """The scopes that have no budget."""
        return tuple(map(_bytes, self._fields["missing"]))

    @property
    def balances(self) -> tuple[Balance, ...]:
        """The budgets after the operation, in the order of the scopes."""
        unit = self.name("unit")
        return tuple(_balance(unit, *row) for row in self._fields["balances"])


def _balance(unit: bytes, scope: str, *rest: Any) -> Balance:
    *amounts, is_over_limit, status = rest
    allocated, remaining, reserved, spent, debt, overdraft_limit = map(int, amounts)
    return Balance(
        _bytes(scope),
        unit,
        allocated,
        remaining,
        reserved,
        spent,
        debt,
        overdraft_limit,
        is_over_limit,
        decode(_bytes(status)),
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
