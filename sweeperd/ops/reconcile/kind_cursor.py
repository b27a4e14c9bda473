"""The place of an unfinished walk over a configured kind, so that a later one can go on from there."""

import pydantic

from sweeperd.ops.reconcile.kind_report import KindFault, KindStage


class KindCursor(pydantic.BaseModel):
    """The field `cursor:<kind>` of `sweeperd:reconcile`, JSON; as WalkCursor, it holds for one run of one server."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    run_id: str
    #: When the walk began, ms on Redis's clock, and how long it has taken so far, seconds.
    started_at: int
    seconds: float
    stage: KindStage
    #: The cursor of SCAN or ZSCAN, by stage.
    position: int
    hashes: int
    entries: int
    found: dict[KindFault, int]
    #: Fault, id in hex, found, expected.
    findings: list[tuple[KindFault, str, str, str]]
