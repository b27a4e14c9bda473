"""Classifies Redis errors: server trouble, missing right, refused command."""

import re
from typing import Any

import redis
from redis import exceptions
from redis.sentinel import MasterNotFoundError

#: Errors about the server instead of the command.
SERVER_TROUBLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.InvalidResponse,  # something else listens there
    exceptions.MasterDownError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)
#: The same for errors without a class in redis-py, and for a script's errors that the server wraps in another error.
#: The server became a replica, lost its primary or too many replicas, gave the slot or a part of it to another node,
#: cannot write its snapshot to disk, or is busy with another client's script.
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
#: An error raised by Lua names its line without an `@`. An error of a command in the script has an `@`.
_SCRIPT_FAULT = re.compile(r"Error compiling script|(?<!@)user_script:\s*\d+:")
#: What a server adds to an error of a command in a script: before it up to Redis 7.0, behind it from Redis 7.0 on.
_PLACE_IN_SCRIPT = re.compile(
    r"(Error running script \(call to f_\w+\): )?(@user_script: ?\d+: )+-?|ACL failure in script: "
    r"| script: (\w+, )?on @user_script:\d+\.$"
)
#: A script's error if the user lacks a right: from Redis up to 7.0, and from Redis 7.2 and newer and Valkey.
_REFUSED_TEXTS = ("NOPERM", "The user executing the script", "ACL failure in script")
#: The error if the server doesn't have a command, because it was renamed: for a client and for a Valkey script, for a
#: Redis script, and for a script that checks its right.
_UNKNOWN_TEXTS = ("nknown command", "nknown Redis command", "Invalid command passed to")
#: Answers, and what fails before a command is sent, that redis-py makes connection errors.
_ANSWERS = (
    exceptions.AuthenticationError,
    exceptions.BusyLoadingError,
    exceptions.MaxConnectionsError,
    MasterNotFoundError,
)
#: The user lacks a right. Rights may depend on the key, so one refused entry says nothing about others.
REFUSED = (exceptions.AuthorizationError, exceptions.NoPermissionError)


def _says(error: Any, *texts: str) -> bool:
    return isinstance(error, redis.ResponseError) and any(text in str(error) for text in texts)


def is_server_trouble(error: Any) -> bool:
    """Whether the error is about the server as a whole. Redis 6.2 wraps a script's errors: `ERR ... -READONLY`."""
    return isinstance(error, SERVER_TROUBLE) or _says(error, *_TROUBLE_CODES)


def is_unanswered(error: Any) -> bool:
    """Whether the connection broke, or Redis was silent for too long, after it may have got the command."""
    asked = not isinstance(error, _ANSWERS) and "connecting to" not in str(error)
    return asked and isinstance(error, redis.ConnectionError | redis.TimeoutError)


def is_demoted(error: Any) -> bool:
    """Whether the server was a primary and is now a replica."""
    return isinstance(error, exceptions.ReadOnlyError) or _says(error, "READONLY")


def is_refused(error: Any) -> bool:
    """Whether the user may not run the command, or the server doesn't have it. A script words both otherwise."""
    return isinstance(error, REFUSED) or _says(error, *_REFUSED_TEXTS, *_UNKNOWN_TEXTS)


def is_unknown_command(error: Any) -> bool:
    """Whether the server doesn't have the command, because it was renamed. Also counts as refused."""
    return _says(error, *_UNKNOWN_TEXTS)


def is_script_fault(error: Any) -> bool:
    """Whether a script itself failed: it didn't compile, or it raised. False for an error of a command in it."""
    return isinstance(error, redis.ResponseError) and _SCRIPT_FAULT.search(str(error)) is not None


def is_full(error: Any) -> bool:
    """Whether Redis refused the command because it is at maxmemory."""
    return isinstance(error, exceptions.OutOfMemoryError) or _says(error, "OOM")


def is_wrong_type(error: BaseException) -> bool:
    return _says(error, "WRONGTYPE")


def is_missing_key(error: redis.ResponseError) -> bool:
    return "no such key" in str(error)


def is_missing_group(error: BaseException) -> bool:
    return _says(error, "NOGROUP")


def describe(error: BaseException) -> str:
    """
    A Redis error in one line. Without the place in the script that met it, if the error is about the server, the
    user's rights or the type of a key.
    """
    text = " ".join(str(error).split())
    if is_server_trouble(error) or is_full(error) or is_refused(error) or is_wrong_type(error):
        text = _PLACE_IN_SCRIPT.sub("", text)
    return text or type(error).__name__


def describe_unavailable(error: Exception) -> str:
    """What an operator is told of a `RedisUnavailable`. A right that the user lacks is no outage."""
    problem = "this user of redis lacks a right" if is_refused(error.__cause__) else "redis is not available"
    return f"{problem}: {error}"
