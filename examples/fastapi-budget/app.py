"""A stream of tokens, paid from a budget: held before the first token, settled after the last one or when cut."""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

from sweeperd.ledger import AsyncLedger, LedgerError, RedisUnavailable

TENANT, SCOPES, UNIT = "acme", ["tenant:acme", "tenant:acme/app:chat"], "TOKENS"
#: How long a hold outlives a process that has died.
TTL = timedelta(seconds=float(os.environ.get("HOLD_SECONDS", "30")))


async def model(prompt: str, max_tokens: int) -> AsyncIterator[str]:
    """Put the client of your model here."""
    for number in range(max_tokens):
        await asyncio.sleep(0.1)
        yield f"{prompt} {number}\n"


@dataclass
class Hold:
    """The hold of one stream, and how much of the hold is used."""

    ledger: AsyncLedger
    reservation_id: str
    used: int = 0

    async def extend(self, remaining_ttl_ms: float) -> None:
        """Move the deadline at half time, until cancelled. If that fails for good, `end` charges all the same."""
        with contextlib.suppress(LedgerError):
            while True:
                await asyncio.sleep(max(remaining_ttl_ms / 2000, 0.1))
                remaining_ttl_ms /= 2
                # Without an answer the next try comes soon, under a new key: extending twice does no harm.
                with contextlib.suppress(RedisUnavailable):
                    key = str(uuid.uuid4())
                    extended = await self.ledger.extend(TENANT, self.reservation_id, TTL / 2, idempotency_key=key)
                    remaining_ttl_ms = extended.remaining_ttl_ms

    async def end(self) -> None:
        """Charge what was used, and give back the rest. Without an answer: the same request, under the same key."""
        for _ in range(10):
            with contextlib.suppress(RedisUnavailable):
                await self.ledger.settle(TENANT, self.reservation_id, self.used, idempotency_key=self.reservation_id)
                return
            await asyncio.sleep(0.5)


async def hold(request: Request, max_tokens: Annotated[int, Query(ge=1, le=4096)] = 256) -> AsyncIterator[Hold]:
    """The exit runs after the stream, whether the stream has ended, has failed or was cut by the client."""
    ledger: AsyncLedger = request.app.state.ledger
    held = await ledger.reserve(
        TENANT, SCOPES, UNIT, max_tokens, ttl=TTL, max_extensions=1000, idempotency_key=str(uuid.uuid4())
    )
    stream = Hold(ledger, held.reservation_id)
    extending = asyncio.create_task(stream.extend(held.remaining_ttl_ms))
    try:
        yield stream
    finally:
        extending.cancel()
        await stream.end()


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One ledger for the process."""
    async with AsyncLedger.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")) as ledger:
        app.state.ledger = ledger
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(LedgerError)
async def refused(_: Request, error: LedgerError) -> JSONResponse:
    """Nothing was held. Each refusal has a code."""
    return JSONResponse({"error": error.code}, status_code=402)


@app.get("/stream")
async def stream(prompt: str, hold: Annotated[Hold, Depends(hold)], max_tokens: int = 256) -> StreamingResponse:
    """Each token counts as used when it is handed to the client."""

    async def tokens() -> AsyncIterator[str]:
        async for token in model(prompt, max_tokens):
            hold.used += 1
            yield token

    return StreamingResponse(tokens(), media_type="text/plain", headers={"x-reservation-id": hold.reservation_id})
