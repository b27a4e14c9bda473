"""Generates the script of a configured kind from its settings and, if it has one, the user's script."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sweeperd.config.kinds import RESERVATION_KEYS, KindSettings, may_overlap
from sweeperd.config.templates import ID, Amount, Command, Field, Word, bare, fields_of, parse_word
from sweeperd.config.types import OWN_KEYS
from sweeperd.store.scripts import expand

#: The globals of Redis that a user's script must not see. What else a server has is found out there.
HIDDEN_GLOBALS = tuple(
    """
    redis server KEYS ARGV cjson cmsgpack struct bit os io debug package module require coroutine collectgarbage gcinfo
    newproxy print _G _VERSION load loadstring loadfile dofile setfenv getfenv getmetatable __redis__err__handler
    __redis__compare_helper __server__err__handler __server__compare_helper
    """.split()  # noqa: SIM905
)
#: The globals for user scripts; as locals, because Redis 6.2 lets a script replace a global for all scripts.
BASIC_GLOBALS = tuple(
    """
    assert error ipairs next pairs pcall rawequal rawget rawset select setmetatable tonumber tostring type unpack xpcall
    """.split()  # noqa: SIM905
)
#: The libraries that a user's script gets copies of.
LIBRARIES = {
    "string": "byte char find format gmatch gsub len lower match rep reverse sub upper",
    "table": "concat insert maxn remove sort",
    "math": "abs ceil floor fmod huge max min",
}
#: Begins the error if the user's file fails before `decide` or `plan` is called.
FILE_FAILED = "KINDFILE"
#: Ends the script after a failed check: with the error if the server is in trouble, else with a quarantine.
_STOP = (
    "if failure then\n  return failure\nend\n"
    "if problem then\n  return entry.set_aside(problem.reason, problem.why)\nend"
)
#: Redis is above `sweep.memory_limit`, so the expiry, which needs memory, is deferred before its plan is made.
_DEFER = "if ARGV[6] == '1' then\n  return {'deferred'}\nend"
#: The characters that need no escape in a Lua string.
_PLAIN = set(string.ascii_letters + string.digits + " !#$%&()*+,-./:;<=>?@[]^_`{|}~")
#: Below this, an addition in floating point is exact.
_SMALL = 10**15
#: The most keys of a quick plan, where each key is compared with those before.
_MAX_QUICK_KEYS = 8
#: The most bytes of a plan and its event.
_MAX_BYTES = 65_536


class Row:
    """The fields of an entry that the script reads, as Lua. Fields with a default follow those without."""

    def __init__(self, kind: KindSettings, more: Iterable[Field]) -> None:
        wanted = [*kind.active, *kind.ended, *kind.over]
        wanted += [name for name in (kind.deadline, kind.tenant) if name is not None]
        fields = [*map(Field, wanted), *more, *fields_of(kind.unless_key or ()), *map(Field, kind.unless_values)]
        own = [field for field in fields if not kind.is_of_element(field)]
        #: The fields of an element of `each`, which are locals of a loop.
        self.elements = list(dict.fromkeys(field for field in fields if kind.is_of_element(field)))
        self.fields = list(dict.fromkeys(field.name for field in own))
        if kind.entry == "member":
            self.fields = [part.name for part in fields_of(kind.parts)]
        elif kind.each is not None and kind.entry == "hash":
            self.fields = list(dict.fromkeys([*self.fields, kind.each]))
        self.defaulted = list(dict.fromkeys(field for field in own if field.default is not None))
        self._kind = kind

    def __getitem__(self, field: str | Field) -> str:
        field = Field(field) if isinstance(field, str) else field
        if field in self.elements:
            return f"item[{self.elements.index(field) + 1}]"
        if field.default is not None:
            return f"row[{len(self.fields) + self.defaulted.index(field) + 1}]"
        name = bare(field.name) if self._kind.entry == "member" else field.name
        return f"row[{self.fields.index(name) + 1}]"

    @property
    def due(self) -> str:
        return "due" if self._kind.deadline is None else self[self._kind.deadline]

    def read(self) -> Iterable[str]:
        """Reads the entry into `row`, or returns the reply about an entry that is gone or has another form."""
        kind = self._kind
        if kind.deadline is None:
            # A dry run goes on without a score, to tell an entry that has ended from one that was lost.
            dry = "" if kind.entry == "member" else " and ARGV[4] ~= ''"
            yield f"local due = entry.indexed(ARGV[4])\nif not due{dry} then\n  return {{'not_found'}}\nend"
        if kind.entry == "member":
            texts = "".join("\0" if isinstance(part, Field) else part for part in kind.parts).split("\0")
            yield "-- @include kind_member"
            yield f"local row = member_parts(ARGV[1], {', '.join(map(quoted, texts))})\nif not row then"
            why = quoted(f"it does not fit {kind.member}")
            yield f"  return ARGV[5] ~= '1' and {{'held', 'quarantined', {why}}}"
            yield f"    or entry.set_aside('INVALID_MEMBER', {why})\nend"
        elif kind.entry == "json":
            yield "-- @include kind_string"
            yield f"local row, document = read_string(KEYS[1], {_paths(self.fields)})"
            yield "if not row then\n  return document\nend"
        else:
            fields = ", ".join(quoted(bare(name)) for name in self.fields or [""])  # HMGET takes at least one
            yield f"local row, reply = entry.read({fields})\nif not row then\n  return reply\nend"
            first = f"not {self[self.fields[0]]}" if self.fields else "true"
            yield f"if {first} and redis.call('EXISTS', KEYS[1]) == 0 then"
            yield "  return entry.drop_unknown('not_found')\nend"
        yield from self.fill(self.defaulted)

    def fill(self, fields: Iterable[Field]) -> Iterable[str]:
        """Puts the defaults of missing fields in place."""
        for field in fields:
            given = self[field] if field in self.elements else self[field.name]
            if field.default is not None:
                yield f"{self[field]} = ({given} or '') ~= '' and {given} or {quoted(field.default)}"


def _paths(names: Iterable[str]) -> str:
    """A Lua list of names of JSON fields; a path is a list itself."""

    def lua(name: str) -> str:
        steps = [bare(name)] if name.startswith('"') else name.split(".")
        return quoted(steps[0]) if len(steps) == 1 else f"{{{', '.join(map(quoted, steps))}}}"

    return f"{{{', '.join(map(lua, names))}}}"


def kind_script(
    kind: KindSettings, kinds: Sequence[KindSettings], reservations: bool, more_globals: Iterable[str] = ()
) -> str:
    """`kinds`: all kinds, whose indexes and entries no plan may write. `more_globals`: others that the server has."""
    body = _script_body(kind) if kind.script is not None else _declared_body(kind)
    lines = ["-- @include kind_entry", *_writable(kind, kinds, reservations), _opened(kind), *body]
    prelude_and_body = expand("\n".join(line for line in lines if line) + "\n")
    return (
        prelude_and_body if kind.script is None else f"{_user_function(kind.script, more_globals)}\n{prelude_and_body}"
    )


def more_keys(kind: KindSettings) -> dict[str, int]:
    """The other keys that the script takes after the first four, with their places in KEYS."""
    wanted = {"protected": kind.unless is not None, "notes": kind.deadline is None, "marks": kind.entry != "hash"}
    return {name: place for place, name in enumerate((name for name, needed in wanted.items() if needed), 5)}


def json_deadline(field: str) -> str:
    """Lua for the text of the deadline in a JSON entry: `due`; false if there is none."""
    return (
        "-- @include kind_json\nlocal text = redis.pcall('GETRANGE', KEYS[1], 0, 65536)\n"
        "local document = type(text) == 'string' and json_read.decoded(text, '{')\n"
        f"local due = document and json_read.row(document, {_paths([field])})[1]\n"
    )


def lua_key(kind: KindSettings, name: str) -> str:
    place = more_keys(kind).get(name)
    return "nil" if place is None else f"KEYS[{place}]"


def _opened(kind: KindSettings) -> str:
    absent = f"ARGV[2] .. {' .. NOT_THERE .. '.join(map(quoted, kind.key_parts))}"
    given = [absent if kind.key is not None else "KEYS[2] .. NOT_THERE", "ARGV[5]", str(kind.unit_ms)]
    given += [lua_key(kind, name) for name in ("protected", "notes", "marks")]
    keys = "KEYS" if kind.key is not None else "{nil, KEYS[2], KEYS[3], KEYS[4]}"
    opened = f"entry.open({keys}, ARGV[1], {', '.join(given)}".removesuffix(", nil, nil, nil")
    return f"{opened.removesuffix(', nil')})"


def _declared_body(kind: KindSettings) -> Iterable[str]:
    commands = kind.given_back
    row = Row(kind, [*needed_fields(commands), *kind.event_fields])
    yield from _begin(kind, row)
    for field in kind.active:
        yield f"if not {row[field]} then\n  return entry.set_aside('INVALID_STATE', {quoted(field)})\nend"
    for field, values in kind.active.items():
        yield f"if {' and '.join(f'{row[field]} ~= {quoted(value)}' for value in values)} then"
        yield from (f"  {line}" for line in _over(kind, row, row[field]))
        why = f"{quoted(field + ' is ')} .. {row[field]} .. {quoted(', active says ' + ' or '.join(values))}"
        yield f"  return entry.drop_unknown('skipped', {row[field]}, {why}, {_all_ends_known(kind)})\nend"
    yield from _due(kind, row)
    yield from _unless(kind, row)
    yield _DEFER
    yield "local event_bytes = 0"
    for told in kind.event_fields:
        value = row[told]
        yield f"if {value} then"
        yield f"  event[#event + 1], event[#event + 2] = {quoted('data.' + bare(told.name))}, {value}"
        yield f"  event_bytes = event_bytes + #{value}\nend"
    yield "-- @include kind_checks"
    yield "local checked, problem, failure"
    quick = kind.each is None and has_quick_plan(commands)
    if quick:
        yield "-- @include kind_quick\nlocal function quick_plan()"
        yield from quick_plan(commands, row, "event_bytes")
        yield "end\nchecked = quick_plan()"
    checks = list(_field_checks(commands, row, lambda field: field not in row.elements))
    if kind.each is None:
        yield from _plan(kind, f"{{{', '.join(_command(command, row) for command in commands)}}}", checks, quick)
    else:
        yield from _plan(kind, "list", [*checks, *_each(kind, row)], quick)
    yield from _end(kind, row)


def _field_checks(commands: Sequence[Command], row: Row, wanted: Callable[[Field], bool]) -> Iterator[str]:
    for field in filter(wanted, needed_fields(commands)):
        which = " .. ' of element ' .. i" if field in row.elements else ""
        yield f"full_plan.field({row[field]}, {quoted(bare(field.name))}{which})"
    yield from (f"full_plan.amount({row[field]})" for field in filter(wanted, _amount_fields(commands)))


def _each(kind: KindSettings, row: Row) -> Iterator[str]:
    """Checks the elements of `each`, and fills the templates into `list`, in their order."""
    each, commands = kind.each or "", kind.given_back
    repeated = [command for command in commands if kind.repeats(command)]
    most = (kind.max_writes - len(commands) + len(repeated)) // len(repeated)
    steps = ", ".join(map(quoted, each.split(".")))
    array = f"json_read.at_path(document, {{{steps}}})" if kind.entry == "json" else row[each]
    names = _paths(field.name.removeprefix(f"{each}.") for field in row.elements)
    yield "-- @include kind_each"
    yield f"local items, list = each_element({array}, {quoted(each)}, {most}, {names}), {{}}"
    yield "for i = 1, #items do\n  local item = items[i]"
    yield from (f"  {line}" for line in row.fill(row.elements))
    yield from (f"  {line}" for line in _field_checks(commands, row, lambda field: field in row.elements))
    yield "end"
    for command in commands:
        added = f"list[#list + 1] = {_command(command, row)}"
        yield f"for i = 1, #items do\n  local item = items[i]\n  {added}\nend" if command in repeated else added


def _script_body(kind: KindSettings) -> Iterable[str]:
    row = Row(kind, map(Field, kind.fields or []))
    yield from _begin(kind, row)
    if kind.entry == "json" and kind.fields is None:
        yield "local hash, count = {}, 0\nfor name, value in next, document do"
        yield "  hash[name], count = json_read.text_of(value) or nil, count + 1\nend"
        yield "if count > 256 then\n  return entry.set_aside('TOO_MANY_FIELDS')\nend"
    elif kind.fields is None and kind.entry == "hash":
        yield "if redis.call('HLEN', KEYS[1]) > 256 then\n  return entry.set_aside('TOO_MANY_FIELDS')\nend"
        yield "local hash, flat = {}, redis.call('HGETALL', KEYS[1])"
        yield "for i = 1, #flat, 2 do\n  hash[flat[i]] = flat[i + 1]\nend"
    else:
        yield f"local hash = {{{', '.join(f'[{quoted(bare(field))}] = {row[field]} or nil' for field in row.fields)}}}"
    yield "-- @include kind_sandbox"
    json = "nil"
    if _names(kind.script or "", "json"):
        yield "-- @include json"
        json = "{decode = json.decode, encode = json.encode}"
    given = ["sandbox.reader(ARGV[2], readable)", json, *_libraries(kind.script or "")]
    yield f"local decide, plan_of, broken = sandbox.load(user, {quoted(FILE_FAILED)}, {', '.join(given)})"
    yield "if broken then\n  return broken\nend"
    yield "local verdict, detail, problem, failure ="
    yield f"  run_checks(sandbox.decided, decide, {kind.max_wait_ms}, hash, clock.now, ARGV[1])"
    yield _STOP
    yield "if verdict == 'skip' then"
    yield from (f"  {line}" for line in _over(kind, row, "detail"))
    yield f"  return entry.drop_unknown('skipped', detail, 'decide says skip ' .. detail, {_all_ends_known(kind)})\nend"
    yield "if verdict == 'quarantine' then\n  return entry.set_aside(detail)\nend"
    yield from _due(kind, row)
    field = "nil" if kind.deadline is None else quoted(kind.deadline)
    if kind.deadline is not None and kind.entry != "hash":
        why = quoted(f"extend: the deadline of entry = {kind.entry} cannot be written")
        yield f"if verdict == 'extend' then\n  return entry.set_aside('SCRIPT_ERROR', {why})\nend"
    yield "if verdict == 'wait' then\n  return entry.move(entry.score_of(detail), nil, true)\nend"
    yield f"if verdict == 'extend' then\n  return entry.move(entry.score_of(detail), {field})\nend"
    yield from _unless(kind, row)
    yield _DEFER
    yield "local list, event_bytes"
    yield "list, event_bytes, problem, failure = run_checks(sandbox.planned, plan_of, event, hash, clock.now, ARGV[1])"
    yield _STOP
    yield "-- @include kind_quick_list"
    quick = kind.commands is None or "HINCRBY" in kind.commands
    if quick:
        yield f"local checked = kind_quick_list(list, ARGV[2], writable, {kind.max_writes}, event_bytes)"
    else:
        yield "local checked"
    copied = ["-- @include kind_lists", f"list = kind_lists.commands(list, {kind.max_writes})"]
    yield from _plan(kind, "list", copied, quick)
    yield from _end(kind, row)


def _user_function(text: str, more_globals: Iterable[str]) -> str:
    """The user's file as a function without the prelude's locals, in line 1, so that errors name the file's lines."""
    named = [name for name in BASIC_GLOBALS if _names(text, name)]
    basics = f"local {', '.join(named)} = {', '.join(named)}; " if named else ""
    return (
        f"local user = function(get, json, {', '.join(LIBRARIES)}, decide, plan) "
        f"local {', '.join([*HIDDEN_GLOBALS, *sorted(more_globals)])}; {basics}"
        f"{text}\nreturn decide, plan\nend"
    )


def _names(text: str, name: str) -> bool:
    """Whether the text contains the name, without which it cannot reach the global of this name."""
    return re.search(rf"\b{name}\b", text) is not None


def _libraries(text: str) -> Iterable[str]:
    """Copies of the libraries that the text names, so that it changes only copies."""
    for library, functions in LIBRARIES.items():
        copies = (f"{name} = {library}.{name}" for name in functions.split())
        yield f"{{{', '.join(copies)}}}" if _names(text, library) else "nil"


def _begin(kind: KindSettings, row: Row) -> Iterable[str]:
    """Reads the entry and checks that it has not ended."""
    yield from row.read()
    if kind.tenant:
        yield f"entry.belongs_to({row[kind.tenant]})"
    if kind.ended:
        carries_all = " and ".join(f"{row[field]} == {quoted(value)}" for field, value in kind.ended.items())
        field, value = next(iter(kind.ended.items()))
        drop = f"entry.drop('skipped', {row[field]})"
        if kind.script is not None:  # here `ended` may name the living state
            drop = (
                f"entry.drop_unknown('skipped', {row[field]}, {quoted(f'{field} is {value}, ended names it')}, false)"
            )
        yield f"if {carries_all} then\n  return {drop}\nend"


def _over(kind: KindSettings, row: Row, detail: str) -> Iterable[str]:
    """Drops an entry that has ended in another known way. `detail`: Lua."""
    if kind.over:
        known = (f"{row[field]} == {quoted(value)}" for field, values in kind.over.items() for value in values)
        yield f"if {' or '.join(known)} then\n    return entry.drop('skipped', {detail})\n  end"


def _all_ends_known(kind: KindSettings) -> str:
    """Lua for whether the settings name all other ends, so that another one is unexpected."""
    return "true" if kind.over else "false"


def _due(kind: KindSettings, row: Row) -> Iterable[str]:
    """Checks the deadline and the grace, and begins the event."""
    deadline, grace, scored = row.due, kind.grace_ms, kind.deadline is None
    if scored:
        yield "if not due then\n  return {'not_found'}\nend"
    yield f"local expires_at = entry.deadline({deadline})"
    why = f"entry.not_a_deadline({deadline}, {quoted(kind.deadline or 'the score')})"
    yield f"if not expires_at then\n  return entry.set_aside('INVALID_EXPIRY', {why})\nend"
    yield f"if clock.now <= expires_at then\n  return entry.move({deadline})\nend"
    if scored and kind.key is not None:
        yield "local renewal = entry.renewed()\nif renewal then\n  return renewal\nend"
    if grace:
        end = f"expires_at + {grace}"
        reply = f"entry.in_grace({end})" if scored else f"{{'in_grace', {end}}}"
        yield f"if clock.now <= {end} then\n  return {reply}\nend"
    tenant = f"{row[kind.tenant]} or ''" if kind.tenant else "''"
    told = "string.format('%.0f', expires_at)" if scored or kind.unit_ms > 1 else deadline
    yield (
        f"local event = {{'type', {quoted(kind.name + '.expired')}, 'kind', {quoted(kind.name)}, 'id', ARGV[1],"
        f" 'tenant', {tenant}, 'expires_at', {told}, 'expired_at', clock.now_text, 'trace_id', ARGV[4]}}"
    )


def _unless(kind: KindSettings, row: Row) -> Iterable[str]:
    """Moves the index entry of a protected entry to the next check."""
    if kind.unless is None:
        return
    key, due = kind.unless_key, f"expires_at + {kind.grace_ms}"
    if key is None:
        asked = " and ".join(f"{row[field]} == {quoted(value)}" for field, value in kind.unless_values.items())
    else:
        for part in dict.fromkeys(fields_of(key)):
            refuse = f"entry.set_aside('MISSING_FIELD', {quoted(bare(part.name))})"
            yield f"if ({row[part]} or '') == '' then\n  return {refuse}\nend"
        asked = f"redis.call('EXISTS', ARGV[2] .. {_filled(key, row)}) == 1"
    yield f"local protected = {asked}"
    again, most = f"clock.now + {kind.unless_recheck_ms}", kind.unless_max_ms
    if most is None:
        yield f"if protected then\n  return entry.protect({due}, {again})\nend"
        return
    yield f"if protected and clock.now < {due} + {most} then"
    yield f"  return entry.protect({due}, math.min({again}, {due} + {most}))\nend"
    if kind.protected == "quarantine":
        yield "if protected then\n  return entry.set_aside('PROTECTED_TOO_LONG')\nend"


def _plan(kind: KindSettings, commands: str, before: Iterable[str], quick: bool) -> Iterable[str]:
    """The full check; after a `quick` one, if that left no `checked`. `commands`: the list, after `before`."""
    usable = "" if kind.commands is None else f", {{{', '.join(f'{name} = true' for name in kind.commands)}}}"
    yield f"local _\n{'if not checked then' if quick else 'do'}\n  checked, _, problem, failure = run_checks(function()"
    yield f"    -- @include kind_plan\n    full_plan.open(ARGV[2], writable, audible, {kind.max_writes}{usable})"
    yield from (f"    {line}" for line in before)
    yield f"    full_plan.weigh(event_bytes)\n    full_plan.commands({commands})"
    yield "    return full_plan.checked()\n  end)\nend"
    yield _STOP


def _end(kind: KindSettings, row: Row) -> Iterable[str]:
    marks = "".join(f", {quoted(field)}, {quoted(value)}" for field, value in kind.ended.items())
    since = f"(expires_at + {kind.grace_ms})"
    lag = f"clock.now - {since if kind.unless is None else f'entry.asked{since}'}"
    yield f"return entry.expire(event, checked, {row.due}, {lag}, ARGV[3]{marks})"


def _writable(kind: KindSettings, kinds: Sequence[KindSettings], reservations: bool) -> Iterable[str]:
    forbidden = [f"{OWN_KEYS}*", *(pattern for other in kinds for pattern in [*other.entry_patterns, other.index])]
    if reservations:
        forbidden += [f"{stem}*" for stem in RESERVATION_KEYS]
    forbidden = [each for each in forbidden if any(may_overlap(each, pattern) for pattern in kind.write_patterns)]
    # The keys of templates match the patterns that are derived from the templates.
    allowed = "true" if kind.writes is None else lua_match(kind.writes)
    yield "-- @include kind_pattern\nlocal sub = string.sub"
    yield f"local function writable(key)\n  return ({allowed}) and not ({lua_match(forbidden)})\nend"
    yield f"local function audible(key)\n  return {lua_match(kind.channels)}\nend"
    if kind.script is not None:
        yield f"local function readable(key)\n  return {lua_match(kind.read_patterns)}\nend"


def lua_match(patterns: Sequence[str]) -> str:
    """Lua for whether `key` matches a pattern, with the local functions `sub` and `is_like`."""
    return " or ".join(_match(pattern) for pattern in dict.fromkeys(patterns)) or "false"


def _match(pattern: str) -> str:
    first, *rest = pattern.split("*")
    if not rest:
        return f"key == {quoted(first)}"
    if rest == [""]:
        return f"sub(key, 1, {len(first.encode())}) == {quoted(first)}" if first else "true"
    *middle, last = rest
    return f"is_like(key, {', '.join(map(quoted, [first, last, *filter(None, middle)]))})"


def needed_fields(commands: Sequence[Command]) -> list[Field]:
    return list(dict.fromkeys(field for command in commands for field in command.fields))


def _command(command: Command, row: Row) -> str:
    key, *rest = (_filled(word, row) for word in (command.key, *command.words))
    amount = [_amount(command.amount, row)] if command.amount else []
    least = ["'MIN'", quoted(command.minimum)] if command.minimum is not None else []
    match command.name:
        case "SET" if amount:
            rest = [*rest, "'PX'", *amount]
        case "HINCRBY" | "INCRBY":
            rest = [*rest, *amount, *least]
        case _:
            rest = [*amount, *rest]
    return f"{{{', '.join([quoted(command.name), key, *rest])}}}"


def _filled(word: Word, row: Row) -> str:
    def lua(part: str | Field) -> str:
        if isinstance(part, str):
            return quoted(part)
        return "ARGV[1]" if part.name == ID else row[part]

    return " .. ".join(map(lua, word)) or "''"


def _amount(amount: Amount, row: Row) -> str:
    if amount.field is None:
        return quoted(amount.literal)
    return f"'-' .. {row[amount.field]}" if amount.negative else row[amount.field]


def _amount_fields(commands: Sequence[Command]) -> list[Field]:
    return list(dict.fromkeys(c.amount.field for c in commands if c.amount and c.amount.field))


def has_quick_plan(commands: Sequence[Command]) -> bool:
    """Whether the commands add small literal numbers to fields that are named in full, each once."""
    uses = [(command.key, *command.words) for command in commands]
    return (
        bool(commands)
        and all(command.name == "HINCRBY" and _is_plain(command) for command in commands)
        and len(set(uses)) == len(uses)
        and len({command.key for command in commands}) <= _MAX_QUICK_KEYS
    )


def _is_plain(command: Command) -> bool:
    literals = [command.amount.literal if command.amount else "0", command.minimum or "0"]
    (field,) = command.words
    return all(abs(int(literal)) < _SMALL for literal in literals) and all(isinstance(part, str) for part in field)


def quick_plan(commands: Sequence[Command], row: Row, event_bytes: str) -> Iterator[str]:
    """The body of a Lua function that returns the checked plan (kind_plan.lua), or nil. `event_bytes`: Lua."""
    numbers = {field: f"amount_{number}" for number, field in enumerate(_amount_fields(commands))}
    for field, number in numbers.items():
        yield f"local {number} = quick_amount({row[field]})"
    texts = [f"({row[field]} or '') == ''" for field in needed_fields(commands) if field not in numbers]
    missing = [*(f"not {number}" for number in numbers.values()), *texts]
    if missing:
        yield f"if {' or '.join(missing)} then\n  return nil\nend"
    yield f"if {event_bytes} + {_bytes(commands, row)} > {_MAX_BYTES} then\n  return nil\nend"
    writes = []
    for place, key in enumerate(dict.fromkeys(command.key for command in commands)):
        together = [command for command in commands if command.key == key]
        yield from _quick_key(place, together, numbers, row)
        pairs = (f"{_filled(c.words[0], row)}, values_{place}[{number}]" for number, c in enumerate(together, 1))
        writes.append(f"{{'HSET', key_{place}, {', '.join(pairs)}}}")
    yield f"return {{writes = {{{', '.join(writes)}}}}}"


def _quick_key(place: int, commands: Sequence[Command], numbers: Mapping[Field, str], row: Row) -> Iterator[str]:
    name, key, values = f"name_{place}", f"key_{place}", f"values_{place}"
    fields = ", ".join(_filled(command.words[0], row) for command in commands)
    yield f"local {name} = {_filled(commands[0].key, row)}\nlocal {key} = ARGV[2] .. {name}"
    if place:
        same = " or ".join(f"{name} == name_{before}" for before in range(place))
        yield f"if {same} then\n  return nil\nend"
    yield f"local {values} = quick_read({name}, {key}, writable, {fields})"
    for number, command in enumerate(commands, 1):
        amount = _number(command.amount, numbers) if command.amount else "0"
        yield f"{values}[{number}] = quick_sum({values}[{number}], {amount}, {command.minimum or 'nil'})"
    absent = " and ".join(f"{values}[{number}]" for number in range(1, len(commands) + 1))
    yield f"if not ({absent}) then\n  return nil\nend"


def _number(amount: Amount, numbers: Mapping[Field, str]) -> str:
    if amount.field is None:
        return amount.literal
    return f"{'-' if amount.negative else ''}{numbers[amount.field]}"


def _bytes(commands: Sequence[Command], row: Row) -> str:
    """Lua for the bytes of the commands' words, as kind_plan.lua counts them."""
    literal, fields = 0, Counter[str]()
    for command in commands:
        for part in _parts(command):
            if isinstance(part, str):
                literal += len(part.encode())
            else:
                fields[_filled((part,), row)] += 1
    return " + ".join([str(literal), *(f"{count} * #{value}" for value, count in fields.items())])


def _parts(command: Command) -> Iterator[str | Field]:
    """All parts of the words of a command, without the command's name."""
    for word in (command.key, *command.words):
        yield from word
    if command.amount:
        yield "-" if command.amount.negative else ""
        yield command.amount.literal if command.amount.field is None else command.amount.field
    if command.minimum is not None:
        yield from ("MIN", command.minimum)


def sums_script(kind: KindSettings) -> str:
    """Lua that follows the kind's script and returns what the entry holds of each of `sums`; see `Sums.script`."""
    words = [(parse_word(each.key), parse_word(each.field), each.of) for each in kind.sums]
    row = Row(kind, [*fields_of(*(word for pair in words for word in pair[:2])), *(Field(of) for *_, of in words)])
    due = "redis.call('ZSCORE', KEYS[2], ARGV[1])" if kind.deadline is None else row.due
    lines = [
        f"local row = redis.pcall('HMGET', KEYS[1], {', '.join(quoted(bare(name)) for name in row.fields)})",
        "if row.err then\n  return string.find(row.err, 'WRONGTYPE', 1, true) and {'not_found', ''} or row\nend",
        *row.fill(row.defaulted),
        f"local held, value = {{reply[1], {due} or ''}}",
    ]
    for key, name, of in words:
        needed = dict.fromkeys(fields_of(key, name))
        there = " and ".join(f"({row[field]} or '') ~= ''" for field in needed) or "true"
        lines += [
            f"if {there} then",
            f"  local key, name = ARGV[2] .. {_filled(key, row)}, {_filled(name, row)}",
            "  value = redis.pcall('HGET', key, name)",
            "  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then",
            "    return value\n  end",
            f"  held[#held + 1] = {{key, name, {row[of]} or '', type(value) == 'string' and value}}",
            "else\n  held[#held + 1] = {'', '', '', false}\nend",
        ]
    return "\n".join([*lines, "return held\n"])


def quoted(text: str) -> str:
    """A Lua string with all but plain ASCII letters, digits and a few signs escaped."""
    characters = (chr(byte) if chr(byte) in _PLAIN else f"\\{byte:03d}" for byte in text.encode())
    return f"'{''.join(characters)}'"
