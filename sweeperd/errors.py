"""Defines the errors that sweeperd expects. Any other error is a bug: logged with a traceback, counted, survived."""


class ConfigError(Exception):
    """The settings are invalid. The message names the file, the key and the problem; the exit code is 2."""


class RedisUnavailable(Exception):
    """Redis is unavailable: down, loading, read-only or refusing. The next tick retries."""


class KindRefused(Exception):
    """A configured kind cannot be swept here: its script does not compile on this server, or a right is missing."""
