"""The package's exception, for repairs to raise."""

from __future__ import annotations

__all__ = ["error"]


def error(sentence: str) -> Exception:
    """Return the package's exception; the package, which registers with fairseq, is imported for nothing less."""
    try:
        from fairseq_lnplace.errors import LnplaceError
    except ImportError:  # another package has the name
        made: type[Exception] = type("LnplaceError", (ValueError,), {"__module__": "fairseq_lnplace.errors"})
        return made(sentence)
    return LnplaceError(sentence)
