"""The pattern of a key: what the script of a kind says of it, beside what the settings say."""

import itertools

import pytest
import redis

from sweeperd.config.kinds import any_match
from sweeperd.store.scripts import Call, Script, expand

#: Every text of up to five letters of these.
KEYS = ["".join(letters) for length in range(6) for letters in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize(
    "pattern", ["a*b", "a*a", "ab*ba", "a*b*a", "*b*", "*a", "a*ab*b", "*aa*bb*", "**", "a**b", "*a*a*a"]
)
def test_the_script_and_the_settings_agree(client: redis.Redis, pattern: str) -> None:
    first, *middle, last = pattern.split("*")
    text = (
        "-- @include kind_pattern\nlocal found = {}\nfor i = 4 + ARGV[1], #ARGV do\n"
        "  found[#found + 1] = is_like(ARGV[i], ARGV[2], ARGV[3], unpack(ARGV, 4, 3 + ARGV[1])) and 1 or 0\nend\n"
        "return found"
    )
    middle = list(filter(None, middle))
    found = Script("", expand(text)).run(client, Call([], [len(middle), first, last, *middle, *KEYS]))
    assert [bool(one) for one in found] == [any_match([pattern], key) for key in KEYS]
