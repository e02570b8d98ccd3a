"""Every exception and warning that thunder_fx raises of its own.

Nothing else lives here, and nothing here imports torch: a caller may catch these without paying for an import. Each
exception is also the builtin that a reader would expect, so code that knows nothing of thunder_fx catches it too.
"""

from __future__ import annotations


class ThunderFXError(Exception):
    """The base of all errors that thunder_fx raises of its own."""


class ThunderFXWarning(UserWarning):
    """Something did not go as asked, but the result is right; the text says what, and what to do."""


class NotCompiledError(ThunderFXError, TypeError):
    """A lookup was asked about a callable that no ThunderCompiler is known to have compiled."""


class UncompilableError(ThunderFXError, TypeError):
    """thunderfx() was given something that torch.compile cannot turn into a compiled callable."""


class OptionError(ThunderFXError, TypeError):
    """An option has an unknown name, or a type or a place that cannot be right."""


class OptionValueError(ThunderFXError, ValueError):
    """An option has a known name and a value that it does not take."""


class RegistrationError(ThunderFXError, TypeError):
    """register() was given a pair that the side table cannot hold."""


class ConfigError(ThunderFXError, ValueError):
    """A setting, or the environment variable behind it, has a value that it does not take."""


class ReproducerError(ThunderFXError, OSError):
    """The folder of a reproducer cannot be written."""


class ReportError(ThunderFXError, OSError):
    """The page of an explanation cannot be written."""


class MinifyError(ThunderFXError, ValueError):
    """A script has no failure that could be shrunk."""


class CompatibilityError(ThunderFXError, ImportError):
    """lightning-thunder cannot be used in this process as it is."""
