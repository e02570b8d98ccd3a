"""From a captured graph to compiled regions: structure, rewrites, inplace, support, partition, regions, in that order.

Nothing here knows of callables, lookups or the side table. compiler.py calls these modules one after the other.
"""
