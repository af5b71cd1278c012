"""The few exceptions a user meets.

Every one of them ends as one clear line: exit code 2 on the command line, a 4xx body over HTTP.
"""

from __future__ import annotations


class DiffsoundError(Exception):
    """An error the user can fix; its message says what was wrong, where, and what to do."""


class InputError(DiffsoundError, ValueError):
    """A prompt, duration, seed or other argument that cannot be used."""


class AudioError(DiffsoundError):
    """An audio file that cannot be read or written."""


class ConfigError(DiffsoundError, ValueError):
    """A configuration with an unknown, ill-typed or contradictory key."""


class BundleError(DiffsoundError):
    """A model folder that is missing, damaged, mismatched or from a newer version."""


class DataError(DiffsoundError):
    """A data set, shard or metadata file that cannot be used."""


class MissingExtraError(DiffsoundError):
    """An optional dependency is not installed; the message has the pip line that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package '{package}'; install it with: pip install 'diffsound[{extra}]'"
        )
