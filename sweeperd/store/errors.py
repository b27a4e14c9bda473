"""The subject of an error of Redis: the server as a whole, the user's rights, or a command."""

import re
from typing import Any

import redis
from redis.exceptions import (
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)

#: A reply of one of these kinds is about the server, not about the command.
SERVER_TROUBLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same, if redis-py has no class for the error, or if the server wraps the error of a script in another error.
#: The server became a replica, lost its primary or too many replicas, has given away the slot, or a part of it, to
#: another node, cannot write its snapshot to disk, or is busy with a script of another client.
_TROUBLE_CODES = (
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "UNBLOCKED",
    "MISCONF ",
    "BUSY ",
    "access a non local key in a cluster node",
    "while the cluster is down",
)
#: An error raised by Lua names its line without an `@`; an error of a command in the script, with an `@`.
_SCRIPT_FAULT = re.compile(r"Error compiling script|(?<!@)user_script:\s*\d+:")
#: The error for a script if the user lacks a right: by Redis to 7.0, and by Redis 7.2 and newer and Valkey.
_REFUSED_TEXTS = ("NOPERM", "The user executing the script", "ACL failure in script")
#: The error if the server does not have a command, because the command was renamed: to a client and to a script of
#: Valkey, to a script of Redis, and to a script that asks for the right.
_UNKNOWN_TEXTS = ("nknown command", "nknown Redis command", "Invalid command passed to")
#: The user's rights do not suffice. Rights may end at some keys, so a refused entry says nothing of others.
REFUSED = (AuthorizationError, NoPermissionError)


def is_server_trouble(error: Any) -> bool:
    """True if the error is about the server as a whole. Redis 6.2 wraps errors in a script: `ERR ... -READONLY`."""
    return isinstance(error, SERVER_TROUBLE) or (
        isinstance(error, redis.ResponseError) and any(code in str(error) for code in _TROUBLE_CODES)
    )


def is_demoted(error: Any) -> bool:
    """True if the server was a primary and is a replica now."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, redis.ResponseError) and "READONLY" in str(error))


def is_refused(error: Any) -> bool:
    """
    True if the user may not run the command, or the server has no command of this name. An error in a script comes
    as another error.
    """
    return isinstance(error, REFUSED) or (
        isinstance(error, redis.ResponseError) and any(text in str(error) for text in _REFUSED_TEXTS + _UNKNOWN_TEXTS)
    )


def is_unknown_command(error: Any) -> bool:
    """True if the server has no command of this name: it was renamed. Such an error is a refusal too."""
    return isinstance(error, redis.ResponseError) and any(text in str(error) for text in _UNKNOWN_TEXTS)


def is_script_fault(error: Any) -> bool:
    """True if a script itself failed: it does not compile here, or it raised. False for an error of a command in it."""
    return isinstance(error, redis.ResponseError) and _SCRIPT_FAULT.search(str(error)) is not None


def is_full(error: Any) -> bool:
    """True if Redis refused the command because Redis is at maxmemory."""
    return isinstance(error, OutOfMemoryError) or (isinstance(error, redis.ResponseError) and "OOM" in str(error))


def is_wrong_type(error: redis.ResponseError) -> bool:
    """True if the command was refused because the key holds a value of another type."""
    return "WRONGTYPE" in str(error)


def is_missing_key(error: redis.ResponseError) -> bool:
    """True if the command was refused because the key does not exist."""
    return "no such key" in str(error)


def is_missing_group(error: BaseException) -> bool:
    """True if the command was refused because the consumer group, or the stream, does not exist."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def describe(error: BaseException) -> str:
    """One line about an error of Redis."""
    return " ".join(str(error).split()) or type(error).__name__
