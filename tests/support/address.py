"""The line with which a command names the address of its shards: each test but those of the address goes without it."""

import re

from click.testing import Result

#: Above a table on standard output; on standard error in all other cases.
TABLE_LINE = re.compile(rb"\A(?:[^\s:]+ )?(?:rediss?(?:\+\w+)?|unix)://.*\n")
ERROR_LINE = re.compile(rb"^sweeperd: on (?:[^\s:]+ )?(?:rediss?(?:\+\w+)?|unix)://.*\n", re.MULTILINE)


def drop_address(result: Result) -> Result:
    """The same result without the line; `address` in a JSON document stays."""
    result.stdout_bytes = TABLE_LINE.sub(b"", result.stdout_bytes or b"", count=1)
    result.stderr_bytes = ERROR_LINE.sub(b"", result.stderr_bytes or b"", count=1)
    result.output_bytes = ERROR_LINE.sub(b"", TABLE_LINE.sub(b"", result.output_bytes, count=1), count=1)
    return result
