"""Whether an endpoint rests, to the millisecond."""

import pytest

from sweeperd.outbox import EndpointState


@pytest.mark.parametrize(
    ("state", "resting"),
    [
        (EndpointState(), False),
        (EndpointState(muted_until=1000), False),
        (EndpointState(muted_until=1001), True),
        (EndpointState(paused_at=1), True),
        (EndpointState(paused_at=1, muted_until=999), True),
    ],
)
def test_an_endpoint_rests_until_its_mute_is_over_or_it_is_resumed(state: EndpointState, resting: bool) -> None:
    assert state.resting(1000) == resting
