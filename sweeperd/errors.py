"""The errors that sweeperd tells apart. Any other error is a bug: logged with its traceback, counted, and survived."""


class ConfigError(Exception):
    """The settings cannot be used. The message names the file, the key and what is wrong; the exit code is 2."""


class RedisUnavailable(Exception):
    """Redis cannot be worked with for now: down, loading, read-only, refusing. The next tick tries again."""


class KindRefused(Exception):
    """A configured kind cannot be swept on this server: the script does not compile there, or a right is missing."""
