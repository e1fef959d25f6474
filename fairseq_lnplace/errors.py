"""The package's one exception and the one grammar of its messages."""

from __future__ import annotations

__all__ = ["LnplaceError", "flag", "must_be"]


class LnplaceError(ValueError):
    """A mistake the user can mend, told in one sentence.

    fairseq's commands and ``lnplace`` print the sentence on stderr and exit with status 1; there is no traceback.
    """


def must_be(name: str, expected: str, actual: object) -> LnplaceError:
    """Return the error "`name` must be EXPECTED, but is ACTUAL", for the caller to raise."""
    return LnplaceError(f"`{name}` must be {expected}, but is {actual}")


def flag(name: str) -> str:
    """Return how the option that a configuration keeps as ``name`` is given on the command line."""
    return "--" + name.replace("_", "-")
