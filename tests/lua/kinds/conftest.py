"""The seats that each test starts from."""

import pytest
import redis

from tests.lua.kinds.world import SCRIPT, Seats, scripted


@pytest.fixture(params=["declared", "script"])
def seats(request: pytest.FixtureRequest, client: redis.Redis) -> Seats:
    """A show with 10 free and 5 held seats, and an overdue hold of 3; as a declared kind and as one with a script."""
    made = Seats(client, None if request.param == "declared" else scripted(SCRIPT))
    made.show()
    made.hold()
    return made
