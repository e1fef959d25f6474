"""Parallel text: where it comes from (``libreoffice``, ``synthetic``) and how it is made ready (``prepare``)."""
