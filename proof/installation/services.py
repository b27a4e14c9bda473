"""Talks to the services of a Cycles installation over HTTP, as their users do."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

#: The first letters of each tenant that a rehearsal makes.
MARK = "rehearsal-"
UNIT = "TOKENS"
ACTION = {"kind": "llm.completion", "name": "rehearsal"}
TIMEOUT = 30


class Services:
    """The runtime and the admin service. Raises AssertionError if one answers what was not asked for."""

    def __init__(self, runtime: str, admin: str, admin_key: str) -> None:
        self._runtime, self._admin = runtime.rstrip("/"), admin.rstrip("/")
        self._headers = {"X-Admin-API-Key": admin_key}

    def admin(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """The answer of the admin service, parsed."""
        answer = requests.request(
            method, self._admin + path, json=body, params=query, headers=self._headers, timeout=TIMEOUT
        )
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer.json() if answer.content else None

    def runtime(self, key: str, method: str, path: str, body: object = None, **query: str) -> tuple[int, Any]:
        """Status and answer of the runtime, for the API key of a tenant."""
        headers = {"X-Cycles-API-Key": key}
        answer = requests.request(
            method, self._runtime + path, json=body, params=query, headers=headers, timeout=TIMEOUT
        )
        return answer.status_code, answer.json() if answer.content else None

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric of the runtime."""
        answer = requests.get(f"{self._runtime}/actuator/prometheus", headers=self._headers, timeout=TIMEOUT)
        return sum(
            sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def versions(self, key: str) -> dict[str, str]:
        """The versions of both, by their names."""
        found = {}
        headers = self._headers | {"X-Cycles-API-Key": key}
        for url in (self._runtime, self._admin):
            build = requests.get(f"{url}/actuator/info", headers=headers, timeout=TIMEOUT).json().get("build", {})
            found[str(build.get("artifact", url))] = str(build.get("version", "unknown"))
        return found


class Tenant:
    """A tenant of a rehearsal, with an API key, and with budgets for itself and for its workspace `prod`."""

    def __init__(self, services: Services, name: str, allocated: int = 1_000_000_000) -> None:
        self.services, self.id = services, name
        services.admin("POST", "/v1/admin/tenants", {"tenant_id": name, "name": "a rehearsal of sweeperd"})
        made = services.admin("POST", "/v1/admin/api-keys", {"tenant_id": name, "name": "rehearsal"})
        self.key = str(made["key_secret"])
        self.allocated = allocated
        self.scopes = [f"tenant:{name}", f"tenant:{name}/workspace:prod"]
        for scope in self.scopes:
            body = {"tenant_id": name, "scope": scope, "unit": UNIT, "allocated": amount(allocated)}
            services.admin("POST", "/v1/admin/budgets", body)
        #: Name -> id and signing secret of each subscription.
        self.subscriptions: dict[str, tuple[str, str]] = {}

    def subscribe(self, name: str, url: str, *, owner: str = "", **fields: object) -> None:
        """`owner`: instead of this one, such as `__system__`."""
        made = self.services.admin("POST", "/v1/admin/webhooks", {"url": url, **fields}, tenant_id=owner or self.id)
        self.subscriptions[name] = made["subscription"]["subscription_id"], made["signing_secret"]

    def reserve(self, units: int, ttl_ms: int = 1000, *, workspace: bool = True, key: str = "") -> str:
        """The id of a new reservation without grace."""
        subject = {"tenant": self.id} | ({"workspace": "prod"} if workspace else {})
        body = {
            "idempotency_key": key or str(uuid.uuid4()),
            "subject": subject,
            "action": ACTION,
            "estimate": amount(units),
            "ttl_ms": ttl_ms,
            "grace_period_ms": 0,
        }
        status, answer = self.services.runtime(self.key, "POST", "/v1/reservations", body)
        assert status == 200, (status, answer)
        return str(answer["reservation_id"])

    def end(self, reservation: str, operation: str, **body: object) -> tuple[int, Any]:
        """Commit, release or extend."""
        path = f"/v1/reservations/{reservation}/{operation}"
        return self.services.runtime(self.key, "POST", path, {"idempotency_key": str(uuid.uuid4()), **body})

    def reservation(self, reservation: str) -> Mapping[str, Any]:
        """As the runtime shows the reservation; only the error of one that has expired."""
        status, answer = self.services.runtime(self.key, "GET", f"/v1/reservations/{reservation}")
        assert status in (200, 410), (status, answer)
        return dict(answer) if status == 200 else {"error": answer["error"]}

    def sorted_list(self) -> list[str]:
        """The ids of all reservations, from lists sorted by `created_at_ms`."""
        found: list[str] = []
        query = {"sort_by": "created_at_ms", "limit": "100"}
        while True:
            status, page = self.services.runtime(self.key, "GET", "/v1/reservations", **query)
            assert status == 200, (status, page)
            found += [row["reservation_id"] for row in page["reservations"]]
            if not page["has_more"]:
                return found
            query["cursor"] = page["next_cursor"]

    def balances(self) -> dict[str, tuple[int, int, int]]:
        """Scope -> remaining, reserved, spent."""
        status, answer = self.services.runtime(self.key, "GET", "/v1/balances", tenant=self.id)
        assert status == 200, (status, answer)
        return {
            row["scope_path"]: (row["remaining"]["amount"], row["reserved"]["amount"], row["spent"]["amount"])
            for row in answer["balances"]
        }

    def deliveries(self, name: str) -> list[dict[str, Any]]:
        """The newest deliveries of a subscription, as the admin service lists them."""
        path = f"/v1/admin/webhooks/{self.subscriptions[name][0]}/deliveries"
        return list(self.services.admin("GET", path, limit="100")["deliveries"])

    def set_status(self, status: str) -> None:
        self.services.admin("PATCH", f"/v1/admin/tenants/{self.id}", {"status": status})

    def unsubscribe(self) -> None:
        for subscription, _ in self.subscriptions.values():
            self.services.admin("DELETE", f"/v1/admin/webhooks/{subscription}")
        self.subscriptions.clear()


def amount(units: int) -> dict[str, object]:
    return {"unit": UNIT, "amount": units}


def flat(value: object, path: str = "") -> dict[str, object]:
    """Each leaf of a JSON value, by its path."""
    if isinstance(value, Mapping):
        rows = [flat(inner, f"{path}.{name}" if path else str(name)) for name, inner in value.items()]
        return {key: leaf for row in rows for key, leaf in row.items()}
    return {path: json.dumps(value) if isinstance(value, list) else value}
