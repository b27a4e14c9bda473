"""The ids that people type: arbitrary bytes, as they are or as logs and tables show them."""

import contextlib
import functools
import os
import re

_BYTE = re.compile(rb"\\x([0-9a-f]{2})")
_CHARACTER = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|([nrt]))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def candidates(text: str) -> list[bytes]:
    """
    What may be meant, the most literal first: the text itself; with `\\xff` as a byte (how `text.shown` writes what is
    not UTF-8); with `\\u202e` and `\\n` as characters too (how tables write what a terminal would obey); with `\\x9b`
    as a character.
    """
    literal = os.fsencode(text)
    found = [literal, _BYTE.sub(lambda escape: bytes.fromhex(escape[1].decode()), literal)]
    for x_is_a_byte in (True, False):
        with contextlib.suppress(UnicodeEncodeError):  # half of a pair of surrogates is no character
            of_character = functools.partial(_character, x_is_a_byte=x_is_a_byte)
            found.append(os.fsencode(_CHARACTER.sub(of_character, text)))
    return list(dict.fromkeys(found))


def _character(escape: re.Match[str], *, x_is_a_byte: bool) -> str:
    byte, code, letter = escape.groups()
    if byte is not None:
        return os.fsdecode(bytes.fromhex(byte)) if x_is_a_byte else chr(int(byte, 16))
    return chr(int(code, 16)) if code is not None else _LETTERS[letter]
