"""
The rule for every script that writes: after its first write there are only plain writes, whose words are known by then.
What else runs there may fail, or wait for an answer, and leave a write in part. The tests run each script of the
package under a guard that ends the script where it breaks the rule.
"""

import functools
import hashlib
import re
from collections.abc import Callable

from sweeperd.store.scripts import Script, script_names

#: What the guard takes for a write.
_WRITES = (
    "DEL HDEL HINCRBY HSET INCRBY LPUSH PERSIST PEXPIRE RPUSH SADD SET SREM UNLINK XACK XADD XCLAIM XDEL XGROUP "
    "XREADGROUP XTRIM ZADD ZREM PUBLISH"
)
WRITES = frozenset(_WRITES.split())
#: The scripts of the package.
SCRIPTS = frozenset({"kind", *script_names()})
MARK = "the rule of plain writes is broken: "

_GUARD = r"""
local redis, cjson, string, math, table = (function(server, cjson, string, math, table)
  local WRITES = {}
  for name in string.gmatch('WRITES', '%a+') do
    WRITES[name] = true
  end
  local written
  local function check(what)
    if written then
      error('MARK' .. what .. ' after ' .. written, 0)
    end
  end
  local function guarded(library, name)
    return setmetatable({}, {__index = function(_, key)
      local value = library[key]
      if type(value) ~= 'function' then
        return value
      end
      return function(...)
        check(name .. '.' .. key)
        return value(...)
      end
    end})
  end
  local json = guarded(cjson, 'cjson')
  if cjson.new then
    rawset(json, 'new', function()
      check('cjson.new')
      return guarded(cjson.new(), 'cjson')
    end)
  end
  local function call(command, ...)
    if not WRITES[command] then
      check('the read ' .. command)
      return server.call(command, ...)
    end
    if not written then
      local reply = server.call(command, ...)
      written = command ~= 'PUBLISH' and command
      return reply
    end
    local reply = server.pcall(command, ...)
    if type(reply) == 'table' and reply.err then
      error('MARK' .. command .. ' failed after ' .. written .. ': ' .. tostring(reply.err), 0)
    end
    return reply
  end
  local function attempt(command, ...)
    local attempted = WRITES[command]
    for i = 1, select('#', ...) do
      attempted = attempted and not string.find((select(i, ...)), '\0sweeperd check', 1, true)
    end
    -- Whether a stream takes an entry is known only when it is added. Until then there is nothing but a ZREM. And a
    -- message that is refused changes nothing.
    if command ~= 'PUBLISH' and not (command == 'XADD' and written == 'ZREM') then
      check('an attempt of ' .. command)
    end
    local reply = server.pcall(command, ...)
    if attempted and command ~= 'PUBLISH' and not (type(reply) == 'table' and reply.err) then
      written = command
    end
    return reply
  end
  local ask = server.acl_check_cmd
  -- Newer servers take no question with too few arguments, so no server of the tests does.
  local LEAST = {DEL = 2, HINCRBY = 4, HSET = 4, XACK = 4, XADD = 5, XGROUP = 4, XTRIM = 4, ZADD = 4}
  local may = ask and function(...)
    check('a question for rights')
    local command, subcommand = ...
    if select('#', ...) < (subcommand == 'CREATE' and 5 or LEAST[command] or 3) then
      error('Wrong number of args for redis.acl_check_cmd()', 0)
    end
    return ask(...)
  end
  local imitation = setmetatable({call = call, pcall = attempt, acl_check_cmd = may}, {__index = server})
  return imitation, json, guarded(string, 'string'), guarded(math, 'math'), guarded(table, 'table')
end)(redis, cjson, string, math, table)
"""
#: In one line, so that the numbers of the script's lines stay.
_GUARD = re.sub(r"\s*\n\s*", " ", re.sub(r"--.*", "", _GUARD)).strip() + " "


def guarded(name: str, text: str) -> str:
    """The text of a script under the guard."""
    name = name.partition(" ")[0]  # `kind seat-hold`
    if name not in SCRIPTS or text.startswith(_GUARD[:40]):
        return text
    return _GUARD.replace("'WRITES'", f"'{_WRITES}'").replace("MARK", f"{MARK}{name}: ") + text


@functools.cache
def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_plain: Callable[[Script], str] = vars(Script)["source"].func


class GuardedScript(Script):
    """Stands in for `Script`: the same text, under the guard."""

    @property
    def source(self) -> str:
        if "plain" not in self.__dict__:
            self.__dict__["plain"] = _plain(self)
        return guarded(self.name, self.__dict__["plain"])

    @source.setter
    def source(self, text: str) -> None:
        self.__dict__["plain"] = text

    def forget(self) -> None:
        self.__dict__.pop("plain", None)

    @property
    def sha(self) -> str:
        return _sha(self.source)

    @sha.setter
    def sha(self, sha: str) -> None:
        self.__dict__["sha"] = sha  # for a thread that is still running when the test is over
