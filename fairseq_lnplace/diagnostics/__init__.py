"""Measurements from outside the model: hooks give rows, rows give tables, tables give figures."""
