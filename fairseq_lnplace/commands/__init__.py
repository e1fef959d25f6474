"""The sub-commands of ``lnplace``, one module each."""
