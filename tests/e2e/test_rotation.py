"""Keys of both kinds are rotated under load; receivers verify with libraries that are not sweeperd's own."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nacl.exceptions
import nacl.signing
import pytest
import redis
import standardwebhooks

from sweeperd.webhook_keys import generate_pair
from tests.support.harness import Daemon, daemon, environment, eventually, reserve
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server

#: Requests of each endpoint that have to come in each phase.
ENOUGH = 15
Verify = Callable[[Request], bool]


def shared(secret: str) -> Verify:
    """Whether a request is signed with this `whsec_` key."""

    def verify(request: Request) -> bool:
        try:
            standardwebhooks.Webhook(secret).verify(request.body, request.headers)
        except standardwebhooks.WebhookVerificationError:
            return False
        return True

    return verify


def private(public: str) -> Verify:
    """Whether a request is signed with the private key of this `whpk_` key."""
    key = nacl.signing.VerifyKey(base64.b64decode(public.removeprefix("whpk_")))

    def verify(request: Request) -> bool:
        signed = f"{request.event_id}.{request.headers['webhook-timestamp']}.".encode() + request.body
        for part in request.headers["webhook-signature"].split():
            version, _, signature = part.partition(",")
            try:
                if version == "v1a":
                    key.verify(signed, base64.b64decode(signature))
                    return True
            except nacl.exceptions.BadSignatureError:
                continue
        return False

    return verify


class Rotating:
    """A receiver that answers 401 to what is not signed with one of the keys that it knows."""

    def __init__(self, *known: Verify) -> None:
        self.known = list(known)
        #: How many signatures each request had.
        self.signatures: list[int] = []

    def __call__(self, request: Request, _: int) -> Answer:
        self.signatures.append(len(request.headers["webhook-signature"].split()))
        return Answer(200 if any(verify(request) for verify in self.known) else 401)


@contextmanager
def load(client: redis.Redis) -> Iterator[Callable[[], int]]:
    """Overdue reservations, again and again while the block lasts. Yields a function with their number so far."""
    ended, made = threading.Event(), 0

    def run() -> None:
        nonlocal made
        while not ended.wait(0.02):
            reserve(client, [f"r{made + number}" for number in range(20)])
            made += 20

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: made
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_both_kinds_of_keys_are_rotated_and_no_delivery_is_rejected(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """Single events signed with a shared key, and batches signed with a private one."""
    config = tmp_path / "config.toml"
    array = "batch_size = 20"
    texts = {
        "old": "whsec_" + base64.b64encode(b"o" * 32).decode(),
        "new": "whsec_" + base64.b64encode(b"n" * 32).decode(),
    }
    pairs = {name: generate_pair() for name in ("old", "new")}
    singles = Rotating(shared(texts["old"]))
    batches = Rotating(private(pairs["old"][1]))
    with Receiver(singles) as hook, Receiver(batches) as many:

        def write(*names: str) -> None:
            blocks = [
                f'name = "singles"\nurl = "{hook.url}"\nsecrets = {[texts[name] for name in names]}',
                f'name = "batches"\nurl = "{many.url}"\nsecrets = {[pairs[name][0] for name in names]}\n{array}',
            ]
            config.write_text(
                "\n".join(["[sweep]", 'interval = "50ms"', *(f"[[webhooks.endpoints]]\n{b}" for b in blocks)])
            )

        def settle(running: Daemon, signatures: int, reloads: int) -> None:
            """Wait until each endpoint has received enough requests with this number of signatures."""
            eventually(lambda: len(running.logged("reloaded")) == reloads)
            wanted = [signatures] * ENOUGH
            for each in (singles, batches):
                since = len(each.signatures)
                eventually(lambda each=each, since=since: each.signatures[since:][-ENOUGH:] == wanted, limit=60)

        write("old")
        with (
            daemon(environment(server.url) | {"SWEEPERD_CONFIG": str(config)}, tmp_path) as running,
            load(client) as made,
        ):
            settle(running, 1, 0)
            write("new", "old")  # the receivers know the old key only
            running.reload()
            settle(running, 2, 1)
            singles.known, batches.known = [shared(texts["new"])], [private(pairs["new"][1])]
            settle(running, 2, 1)
            write("new")
            running.reload()
            settle(running, 1, 2)
            eventually(lambda: made() > 1000)
            for name in ("singles", "batches"):
                counted = {
                    result: running.metric("sweeperd_webhook_attempts_total", endpoint=name, result=result)
                    for result in ("delivered", "rejected", "failed")
                }
                assert counted["delivered"] > 3 * ENOUGH
                assert (counted["rejected"], counted["failed"]) == (0, 0)
    # The last requests carry the new signature alone.
    last = many.requests[-1]
    assert private(pairs["new"][1])(last)
    assert not private(pairs["old"][1])(last)


def test_a_rotated_password_of_redis_needs_no_person(own_server: Server, tmp_path: Path) -> None:
    """Both orders: the file last, and the order of docs/how-to/rotate-secrets.md: add, change the file, remove."""
    place = own_server.url.removeprefix("redis://")
    file = tmp_path / "redis-url"

    def write(password: str) -> None:
        file.write_text(f"redis://sweeper:{password}@{place}\n")

    with redis.Redis.from_url(own_server.url) as client:

        def passwords(*changes: str) -> None:
            client.execute_command("ACL", "SETUSER", "sweeper", *changes)

        def close_connections() -> None:
            client.execute_command("CLIENT", "KILL", "USER", "sweeper")

        passwords("on", ">first", "~*", "&*", "+@all")
        write("first")
        with daemon(environment(f"file:{file}", sweep__interval="200ms"), tmp_path) as running:
            eventually(lambda: running.get("/readyz")[0] == 200)

            def is_ready_again(name: str, reloads: int) -> None:
                reserve(client, [name])
                eventually(lambda: client.hget(f"reservation:res_{name}", "state") == b"EXPIRED")
                eventually(lambda: running.get("/readyz")[0] == 200)
                assert running.metric("sweeperd_reloads_total", result="ok") == reloads

            passwords("resetpass", ">second")
            close_connections()
            refused = "invalid username-password"  # a role may say so before readiness ends
            eventually(lambda: (seen := running.get("/readyz"))[0] == 503 and refused in seen[1])
            write("second")
            is_ready_again("r1", 1)

            passwords(">third")
            write("third")
            close_connections()
            is_ready_again("r2", 1)
            passwords("<second")
            close_connections()
            is_ready_again("r3", 2)
        assert not running.logged("the new settings are refused, the old ones stay")


def test_a_changed_file_of_an_endpoint_s_secret_is_read_again(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    old, new = (f"whsec_{base64.b64encode(key * 32).decode()}" for key in (b"o", b"n"))
    file = tmp_path / "billing"
    file.write_text(old)
    with Receiver(lambda *_: Answer()) as receiver:
        endpoints = [{"name": "billing", "url": receiver.url, "secrets": [f"file:{file}"]}]
        with daemon(environment(server.url, sweep__interval="200ms", endpoints=endpoints), tmp_path) as running:
            reserve(client, ["r1"])
            receiver.wait_for(lambda requests: len(requests) == 1)
            # As Kubernetes does: the file is replaced, not written.
            (tmp_path / "next").write_text(new)
            (tmp_path / "next").rename(file)
            eventually(lambda: running.metric("sweeperd_reloads_total", result="ok") == 1)
            reserve(client, ["r2"])
            first, second = receiver.wait_for(lambda requests: len(requests) == 2)
            assert (shared(old)(first), shared(old)(second), shared(new)(second)) == (True, False, True)
            file.unlink()
            eventually(lambda: running.metric("sweeperd_reloads_total", result="refused") == 1)
            reserve(client, ["r3"])
            third = receiver.wait_for(lambda requests: len(requests) == 3)[-1]
            assert shared(new)(third)
