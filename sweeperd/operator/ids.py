"""The ids that people type: arbitrary bytes, as they are or as logs and tables show them."""

import contextlib
import os
import re

_BYTE = re.compile(rb"\\x([0-9a-f]{2})")
_CHARACTER = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|([nrt]))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def candidates(text: str) -> list[bytes]:
    """
    What may be meant, the most literal first: the text itself; with `\\xff` as a byte (how `text.shown` writes what is
    not UTF-8); with `\\x1b`, `\\u202e`, `\\n` as characters (how tables write what a terminal would obey).
    """
    literal = os.fsencode(text)
    found = [literal, _BYTE.sub(lambda escape: bytes.fromhex(escape[1].decode()), literal)]
    with contextlib.suppress(UnicodeEncodeError):  # half of a pair of surrogates is no character
        found.append(os.fsencode(_CHARACTER.sub(_character, text)))
    return list(dict.fromkeys(found))


def _character(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return _LETTERS[found[3]] if code is None else chr(int(code, 16))
