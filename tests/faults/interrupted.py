"""
Runs ledger calls that signals interrupt: `python -m tests.faults.interrupted URL COUNT`. Prints how many were
interrupted, and how many others returned a wrong answer.
"""

import random
import signal
import sys
from datetime import timedelta

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Ledger

#: The interrupt comes up to this long after the beginning of the call, s.
LATEST = 0.008


class Interrupt(Exception):
    pass


def interrupt(*_: object) -> None:
    raise Interrupt


def main(url: str, count: int) -> None:
    interrupted = wrong = number = 0
    signal.signal(signal.SIGALRM, interrupt)
    with Ledger.from_url(url) as ledger:
        ledger.open_budget("s", "TOKENS", 10**9)
        while interrupted < count:
            number += 1
            key = str(number)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, LATEST))
                try:
                    held = ledger.reserve("a", ["s"], "TOKENS", number, ttl=timedelta(minutes=1), idempotency_key=key)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                wrong += ledger.get(held.reservation_id).amount != number
            except Interrupt:
                interrupted += 1
            except RedisUnavailable:
                wrong += 1
    print(interrupted, wrong)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
