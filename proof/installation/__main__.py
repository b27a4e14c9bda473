"""
`python -m proof.installation --runtime URL --admin URL --redis URL`: a rehearsal on a running Cycles installation, to
be run in staging before sweeperd takes the place of its expiry sweep. The admin key is in CYCLES_ADMIN_KEY.

The rehearsal makes its own tenants, closes them at the end, and deletes nothing that is not its own. Exit code 0: all
holds; 1: something does not; 2: bad option, or the installation is not one to rehearse on.
"""

import argparse
import contextlib
import ipaddress
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import redis
import requests

from proof.installation.rehearsal import STEPS, Rehearsal
from proof.installation.services import MARK, Services
from sweeperd import __version__
from tests.support.receiver import Receiver

SECURITY = "/v1/admin/config/webhook-security"


class Refused(Exception):
    """The installation is not one to rehearse on."""


def main() -> int:
    options = _options()
    key = os.environ.get("CYCLES_ADMIN_KEY")
    if not key:
        print("set CYCLES_ADMIN_KEY to the admin key of the installation", file=sys.stderr)
        return 2
    services = Services(options.runtime, options.admin, key)
    client = redis.Redis.from_url(options.redis, protocol=2)
    try:
        _check_tenants(client, options)
        with _receivable(services, options) as receiver, tempfile.TemporaryDirectory(prefix="rehearsal-") as directory:
            on = Rehearsal(services, client, options.redis, receiver, Path(directory), options.seconds, options.burst)
            found, holds = _rehearse(on, options.only)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            return 0 if holds else 1
    except (Refused, redis.RedisError, requests.RequestException) as error:
        print(f"no rehearsal: {error}", file=sys.stderr)
        return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.installation", description=__doc__)
    parser.add_argument("--runtime", required=True, metavar="URL", help="of the runtime (cycles-server)")
    parser.add_argument("--admin", required=True, metavar="URL", help="of the admin service")
    parser.add_argument("--redis", required=True, metavar="URL", help="of the Redis that both use")
    parser.add_argument(
        "--receiver", default="127.0.0.1", metavar="HOST", help="the name of this host for the dispatcher"
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long the traffic lasts (60)")
    parser.add_argument("--burst", type=int, default=3000, help="how many expiries at once (3000; 0: leave it out)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep what was found, a JSON object")
    parser.add_argument("--only", choices=STEPS, action="append", metavar="STEP", help=f"one of: {', '.join(STEPS)}")
    parser.add_argument("--beside-tenants", action="store_true", help="rehearse in a Redis that has other tenants too")
    parser.add_argument("--open-webhooks", action="store_true", help="admit webhooks to HOST while the rehearsal lasts")
    return parser.parse_args()


def _check_tenants(client: redis.Redis, options: argparse.Namespace) -> None:
    others = [each for each in cast(set[bytes], client.smembers("tenants")) if not each.startswith(MARK.encode())]
    if others and not options.beside_tenants:
        raise Refused(
            f"the Redis has {len(others)} tenants that no rehearsal made. sweeperd would sweep their reservations too; "
            "--beside-tenants says that this may be"
        )


@contextlib.contextmanager
def _receivable(services: Services, options: argparse.Namespace) -> Iterator[Receiver]:
    """A receiver that the services accept as the target of a webhook."""
    rules = services.admin("GET", SECURITY)
    with Receiver(host=options.receiver) as receiver:
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(options.receiver)
            blocked = [each for each in rules["blocked_cidr_ranges"] if address in ipaddress.ip_network(each)]
        if rules.get("allow_http") and not blocked:
            yield receiver
            return
        if not options.open_webhooks:
            raise Refused(
                f"the services refuse webhooks to http://{options.receiver}. --open-webhooks admits them while the "
                "rehearsal lasts, and puts the rules back"
            )
        left = [each for each in rules["blocked_cidr_ranges"] if each not in blocked]
        services.admin("PUT", SECURITY, rules | {"allow_http": True, "blocked_cidr_ranges": left})
        try:
            yield receiver
        finally:
            services.admin("PUT", SECURITY, rules)


def _rehearse(on: Rehearsal, only: list[str] | None) -> tuple[dict[str, str], bool]:
    """What each step found, by its name, and whether all of them hold."""
    all_hold = True
    key = on.tenant("versions").key
    if on.client.get(f"tenant:{on.tenants[0].id}") is None:
        raise Refused("a tenant made in the admin service is not in this Redis")
    versions = on.services.versions(key) | {"Redis": on.client.info()["redis_version"], "sweeperd": __version__}
    figures = {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}
    print(figures["versions"])
    try:
        for name, step in STEPS.items():
            if only and name not in only:
                continue
            started = time.monotonic()
            try:
                found, holds = step(on), "holds"
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                all_hold = False
                found, holds = f"{type(error).__name__}: {error} ({at.line}, line {at.lineno})"[:2000], "DOES NOT HOLD"
            figures[name] = f"{holds}: {found}"
            print(f"{name}: {holds} ({time.monotonic() - started:.0f} s): {found}", flush=True)
    finally:
        for tenant in on.tenants:
            try:
                tenant.unsubscribe()
                tenant.set_status("CLOSED")
            except (AssertionError, requests.RequestException) as error:
                print(f"{tenant.id} could not be closed: {error}", file=sys.stderr)
    # The dispatcher has no API: its webhooks name it.
    agents = {request.headers.get("User-Agent", "").replace("/", " ") for request in on.receiver.requests}
    figures["versions"] = ", ".join([figures["versions"], *sorted(filter(None, agents))])
    figures["left behind"] = (
        f"{len(on.tenants)} closed tenants {MARK}{on.run}-*, with their reservations, events and "
        "deliveries until their TTLs, and the keys sweeperd:*"
    )
    print(f"left behind: {figures['left behind']}")
    return figures, all_hold


if __name__ == "__main__":
    sys.exit(main())
