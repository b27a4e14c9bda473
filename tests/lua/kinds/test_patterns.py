"""The pattern of a key: what the script of a kind says of it, beside what the settings say."""

import itertools

import pytest
import redis

from sweeperd.config.kinds import any_match
from sweeperd.store.scripts import Call, Script, expand
from sweeperd.sweep.kind_script import lua_match

#: Every text of up to five letters of these.
KEYS = ["".join(letters) for length in range(6) for letters in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize(
    "patterns",
    [
        *(["a*b"], ["a*a"], ["ab*ba"], ["a*b*a"], ["*b*"], ["*a"], ["a*ab*b"], ["*aa*bb*"], ["**"], ["a**b"]),
        *(["*a*a*a"], ["ab"], ["ab*"], ["*"], [], ["aa", "b*", "*bb"]),
    ],
    ids=" ".join,
)
def test_the_script_and_the_settings_agree(client: redis.Redis, patterns: list[str]) -> None:
    text = (
        "-- @include kind_pattern\nlocal sub = string.sub\n"
        f"local function matches(key)\n  return {lua_match(patterns)}\nend\n"
        "local found = {}\nfor i, key in ipairs(ARGV) do\n  found[i] = matches(key) and 1 or 0\nend\nreturn found"
    )
    found = Script("", expand(text)).run(client, Call([], KEYS))
    assert [bool(one) for one in found] == [any_match(patterns, key) for key in KEYS]
