"""Remembers ids in bounded memory."""

import hashlib

#: Bits of `BloomFilter` for each key of the database, and how many bits there are at least and at most: 32 MiB.
_BITS_EACH, _BITS_LEAST, _BITS_MOST = 16, 1 << 20, 1 << 28


class BloomFilter:
    """A Bloom filter of ids: `add` may return True for a new id, and never returns False for a known one."""

    def __init__(self, expected: int) -> None:
        bits = min(max(expected * _BITS_EACH, _BITS_LEAST), _BITS_MOST)
        self._mask = (1 << (bits - 1).bit_length()) - 1
        self._bits = bytearray((self._mask + 1) // 8)

    def add(self, entry: bytes) -> bool:
        """Add an id. Returns whether the id may have been added before."""
        digest = hashlib.blake2b(entry, digest_size=16).digest()
        before = True
        for start in range(0, 16, 4):
            place = int.from_bytes(digest[start : start + 4], "big") & self._mask
            byte, bit = place >> 3, 1 << (place & 7)
            if not self._bits[byte] & bit:
                before = False
                self._bits[byte] |= bit
        return before
