"""What a daemon does: all of it, or one half, so that sweep and delivery can be scaled apart."""

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
