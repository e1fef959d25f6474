"""Tables become figures; the only modules of the measurements that draw."""
