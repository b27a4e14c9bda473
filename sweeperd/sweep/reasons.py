"""The reasons of a quarantine, as expire.lua names them, and what each means for the operator who repairs."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "WRONG_TYPE": "the reservation's key is no hash",
    "INVALID_STATE": "state is missing or none of ACTIVE, COMMITTED, RELEASED, EXPIRED",
    "INVALID_EXPIRY": "expires_at, or grace_ms where there is one, is no plain whole number of milliseconds",
    "INVALID_ESTIMATE": "estimate_amount is no plain whole number from 0 to 2^63-1, or estimate_unit is missing",
    "MISSING_SCOPES": "there is neither budgeted_scopes nor affected_scopes",
    "MALFORMED_SCOPES": "the scopes are not a JSON array of strings, or it is empty, or one of them is",
    "TOO_MANY_SCOPES": "there are more than 256 scopes",
    "INVALID_BUDGET": "the budget of a scope is no hash, or its reserved or remaining is no whole number",
    "RESERVED_UNDERFLOW": "the budget of a scope has less reserved than is to be given back",
    "BUDGET_OVERFLOW": "remaining of a scope's budget would leave the range of 64 bits",
}
