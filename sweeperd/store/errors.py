"""What an error of Redis is about: the server as a whole, the user's rights, or one command."""

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

#: A reply of one of these kinds is about the server, not about the command that it answers.
SERVER_TROUBLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: The same, where redis-py has no class for it, or where the server wraps the error that a script met in another one.
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
#: An error that Lua raised names its line without an `@`; one of a command in the script with it.
_SCRIPT_FAULT = re.compile(r"Error compiling script|(?<!@)user_script:\s*\d+:")
#: What a script is told if the user lacks a right: by Redis to 7.0, and by Redis 7.2 and newer and Valkey.
_REFUSED_TEXTS = ("NOPERM", "The user executing the script", "ACL failure in script")
#: What is said of a command that the server does not have, because it was renamed: to a client and to a script of
#: Valkey, to a script of Redis, and to a script that asks for the right to it.
_UNKNOWN_TEXTS = ("nknown command", "nknown Redis command", "Invalid command passed to")
#: The user's rights do not suffice. Rights may end at some keys, so one entry that is refused says nothing of others.
REFUSED = (AuthorizationError, NoPermissionError)


def is_server_trouble(error: Any) -> bool:
    """Whether this error is about the server as a whole. Redis 6.2 wraps what a script meets: `ERR ... -READONLY`."""
    return isinstance(error, SERVER_TROUBLE) or (
        isinstance(error, redis.ResponseError) and any(code in str(error) for code in _TROUBLE_CODES)
    )


def is_refused(error: Any) -> bool:
    """
    Whether the user may not run the command, or the server has none of that name. What a script meets comes as another
    error.
    """
    return isinstance(error, REFUSED) or (
        isinstance(error, redis.ResponseError) and any(text in str(error) for text in _REFUSED_TEXTS + _UNKNOWN_TEXTS)
    )


def is_unknown_command(error: Any) -> bool:
    """Whether the server has no command of that name, because it was renamed. Such an error is a refusal too."""
    return isinstance(error, redis.ResponseError) and any(text in str(error) for text in _UNKNOWN_TEXTS)


def is_script_fault(error: Any) -> bool:
    """Whether a script itself failed: it does not compile here, or it raised. Not an error of a command in it."""
    return isinstance(error, redis.ResponseError) and _SCRIPT_FAULT.search(str(error)) is not None


def is_full(error: Any) -> bool:
    """Whether Redis refused the command because it is at maxmemory."""
    return isinstance(error, OutOfMemoryError) or (isinstance(error, redis.ResponseError) and "OOM" in str(error))


def is_wrong_type(error: redis.ResponseError) -> bool:
    """Whether the command was refused because its key holds a value of another type."""
    return "WRONGTYPE" in str(error)


def is_missing_key(error: redis.ResponseError) -> bool:
    """Whether the command was refused because its key does not exist."""
    return "no such key" in str(error)


def is_missing_group(error: BaseException) -> bool:
    """Whether the command was refused because its consumer group, or the stream, does not exist."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def describe(error: BaseException) -> str:
    """One line about an error of Redis."""
    return " ".join(str(error).split()) or type(error).__name__
