"""An index whose entries have their fate in their name, and sweepers over it."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sweeperd.config import SweepSettings
from sweeperd.store import Shard
from sweeperd.store.scripts import Call, Script, ScriptPipeline, source
from sweeperd.sweep import Decision, GraceScan, Kind, Labels, Outcome
from sweeperd.sweep.index import GraceCache
from sweeperd.sweep.sweeper import Sweeper
from tests.support.builders import make_sweeper
from tests.support.busy import BUSY

#: The beginning of an entry's id says what becomes of it; each run is written down in the journal.
FATES = (
    BUSY
    + """
local fate = string.match(ARGV[1], '^%a+')
redis.call('RPUSH', KEYS[2], ARGV[1])
if fate == 'go' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return {'expired'}
elseif fate == 'later' then
  redis.call('ZADD', KEYS[1], ARGV[2] + 1000000, ARGV[1])
  return {'not_due'}
elseif fate == 'again' then
  local time = redis.call('TIME')
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + 1, ARGV[1] .. '+')
  return {'expired'}
elseif fate == 'slow' then
  busy(2000)
elseif fate == 'late' then
  busy(2000)
  redis.call('ZREM', KEYS[1], ARGV[1])
  return {'expired', 3600000}
elseif fate == 'fail' then
  return redis.error_reply('ERR no luck')
elseif fate == 'refused' then
  return redis.error_reply('NOPERM no right')
elseif fate == 'broken' then
  return fate.missing.field
elseif fate == 'trouble' then
  return redis.error_reply('READONLY this is a replica')
end
return {'in_grace'}
"""
)
#: The page shows which entries stay.
GRACE_SCAN = f"""
{source("include/paging")}
local found, ends = page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]), {{}}
for i = 1, #found, 2 do
  local stays = string.match(found[i], '^stay')
  if stays then
    redis.call('RPUSH', ARGV[5], found[i])
  end
  ends[#ends + 1] = stays and 9007199254740992 or 0
end
return {{found, ends, #ends == tonumber(ARGV[4]) and '1' or '0', ''}}
"""
INDEX, JOURNAL, QUARANTINE = b"index", b"journal", b"quarantine"


@dataclass
class World:
    """An index whose entries have their fate in their name, and sweepers over it."""

    shard: Shard
    now: int
    observed: list[Decision] = field(default_factory=list)
    trace_ids: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    #: What happens after each batch.
    then: Callable[[], object] = lambda: None
    #: Whether the page shows which entries stay.
    scan: bool = False

    def fill(self, entries: dict[str, int]) -> None:
        """Put entries into the index, by how many ms ago they were due."""
        if entries:
            self.shard.client.zadd(INDEX, {name: self.now - overdue for name, overdue in entries.items()})

    def sweeper(self, batch_size: int, depth: int, time_budget: str = "60s", least_depth: int | None = None) -> Sweeper:
        """A sweeper; without `least_depth` its batches keep their size, however slowly the machine answers."""
        settings = {
            "batch_size": batch_size,
            "pipeline_depth": depth,
            "pipeline_depth_min": least_depth or depth,
            "time_budget": time_budget,
        }
        kind = Kind(
            name="fates",
            labels=Labels("fate"),
            index=INDEX,
            quarantine=QUARANTINE,
            ticks=b"ticks",
            stem=b"",
            deadline="deadline",
            tenant="tenant",
            lease_job="sweep:fates",
            script=Script("fates", FATES),
            explainer=Script("fates", FATES),
            index_check=Script("ops/reconcile_entry"),
            call=lambda entry, *_: Call([INDEX, JOURNAL], [entry, self.now]),
            decision=lambda entry, reply: Decision(entry, Outcome(reply[0].decode()), lag_ms=sum(reply[1:])),
            grace_scan=GraceScan(Script("grace_scan", GRACE_SCAN), [JOURNAL]) if self.scan else None,
        )
        return make_sweeper(self.shard, kind, SweepSettings.model_validate(settings), self._observe, self.stop)

    def _observe(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self.observed += decisions
        self.trace_ids.append(trace_id)
        self.then()

    def journal(self) -> list[str]:
        """Which entries the script has run for since the last call, in order."""
        with self.shard.client.pipeline() as pipeline:
            pipeline.lrange(JOURNAL.decode(), 0, -1)
            pipeline.delete(JOURNAL)
            names: list[Any] = pipeline.execute()[0]
        return [name.decode() for name in names]

    def index(self) -> set[str]:
        names: Any = self.shard.client.zrange(INDEX, 0, -1)
        return {name.decode() for name in names}


@contextlib.contextmanager
def batches(each: Callable[[list[int]], object] = lambda _: None) -> Iterator[list[int]]:
    """How many calls each batch has that is sent meanwhile. `each` is called with this list before a batch is sent."""
    sent: list[int] = []
    original = ScriptPipeline.send

    def send(stream: ScriptPipeline, calls: Sequence[Call]) -> None:
        sent.append(len(calls))
        each(sent)
        original(stream, calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptPipeline, "send", send)
        yield sent


@contextlib.contextmanager
def without_looks() -> Iterator[None]:
    """A sweep that looks which entries are in grace fails meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraceCache, "scan", _never)
        yield


def _never(*_: Any) -> None:
    raise AssertionError("somebody looked")
