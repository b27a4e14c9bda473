"""Remembers ids in bounded memory."""

import hashlib

#: Bits for each expected id, and the least and the most bits in all (32 MiB).
_BITS_EACH, _BITS_LEAST, _BITS_MOST = 16, 1 << 20, 1 << 28


class BloomFilter:
    """A set of ids in which `add` may take a new id for a known one, but never a known one for new."""

    def __init__(self, expected: int) -> None:
        bits = min(max(expected * _BITS_EACH, _BITS_LEAST), _BITS_MOST)
        self._mask = (1 << (bits - 1).bit_length()) - 1
        self._bits = bytearray((self._mask + 1) // 8)

    def add(self, entry: bytes) -> bool:
        """Returns whether the id may have been added before."""
        digest = hashlib.blake2b(entry, digest_size=16).digest()
        before = True
        for start in range(0, 16, 4):
            place = int.from_bytes(digest[start : start + 4], "big") & self._mask
            byte, bit = place >> 3, 1 << (place & 7)
            if not self._bits[byte] & bit:
                before = False
                self._bits[byte] |= bit
        return before
