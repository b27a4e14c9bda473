"""The process: the role that it has."""

from enum import StrEnum


class Role(StrEnum):
    """The values of `--role`."""

    ALL = "all"
    #: Sweeps and walks; keeps the groups of the endpoints, and delivers nothing.
    SWEEP = "sweep"
    #: Delivers, and maintains the stream.
    DELIVER = "deliver"

    @property
    def sweeps(self) -> bool:
        """Whether it decides entries."""
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        """Whether it sends events."""
        return self is not Role.SWEEP
