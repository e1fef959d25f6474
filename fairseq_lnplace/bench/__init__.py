"""The benchmark: the same work by several sides in turn, stock fairseq among them, and whether they agree."""
