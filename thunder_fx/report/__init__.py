"""explain(): what was compiled of a callable, joined from the records, as text, as data and as a page.

It reads, and nothing that compiles imports it.
"""

SCHEMA_VERSION = 1
