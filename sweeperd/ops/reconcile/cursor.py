"""The place of an unfinished walk, so that a later one can go on from there."""

import pydantic

from sweeperd.ops.reconcile.report import Fault, WalkStage


class WalkCursor(pydantic.BaseModel):
    """
    The field `cursor` of `sweeperd:reconcile`, JSON. A cursor of SCAN holds for one run of one server only, so a walk
    goes on from here where the server's `run_id` is still the same, and begins anew where it differs.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    run_id: str
    #: When the walk began, ms on Redis's clock, and how long it has taken so far, seconds.
    started_at: int
    seconds: float
    stage: WalkStage
    #: The cursor of SCAN or ZSCAN, by stage.
    position: int
    reservations: int
    entries: int
    dismissed: int
    foreign_expiries: int
    found: dict[Fault, int]
    #: Fault, id in hex, found, expected.
    findings: list[tuple[Fault, str, str, str]]
