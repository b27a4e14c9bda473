"""Reads the event stream with a consumer group. Needs `pip install redis`."""

import os

import redis

STREAM, GROUP, NAME = "sweeperd:events", "warehouse", f"reader-{os.getpid()}"
# A read waits for 5 seconds, so the socket has to wait for longer.
client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True, socket_timeout=15)


def handle(fields: dict[str, str]) -> None:
    if "only_for" not in fields and "data" not in fields:
        print("expired", fields["id"], fields.get("amount"), flush=True)


def main() -> None:
    try:
        client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
    while True:
        # From Redis 7.0 on a third part names entries that are gone; Redis 6.2 gives them as None.
        _, entries, *_ = client.xautoclaim(STREAM, GROUP, NAME, min_idle_time=60_000, count=100)
        for _, new in client.xreadgroup(GROUP, NAME, {STREAM: ">"}, count=100, block=5_000) or []:
            entries += new
        for entry, fields in entries:
            if entry is not None:
                handle(fields or {})
                client.xack(STREAM, GROUP, entry)


main()
