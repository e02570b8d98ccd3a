"""Settings of the whole process: the environment, read once and validated, and a context manager that mirrors it.

    import thunder_fx
    with thunder_fx.config.patch(verbose=True):
        compiled(x)

Options of one compiled callable do not live here (options.py), and nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from thunder_fx.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


def _boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    allowed = ", ".join(sorted(filter(None, _TRUE | _FALSE)))
    raise ConfigError(f"{name} takes True or False (in the environment one of: {allowed}); found {value!r}")


@dataclass(frozen=True)
class _Setting:
    environment: str
    parse: Callable[[str, object], Any]
    default: Any


_SETTINGS: dict[str, _Setting] = {
    # Logs each captured graph, its regions and seconds, as they finish, to the logger "thunder_fx".
    "verbose": _Setting("THUNDER_FX_VERBOSE", _boolean, False),
}


class Config:
    """The settings in force here: `config.verbose`, and `with config.patch(verbose=True): ...`.

    A patch holds for the thread or asyncio task that made it; an assignment, `config.verbose = True`, for the process.
    """

    verbose: bool

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        values = {
            name: setting.parse(setting.environment, environment[setting.environment])
            if setting.environment in environment
            else setting.default
            for name, setting in _SETTINGS.items()
        }
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_patches", contextvars.ContextVar("thunder_fx.config", default=MappingProxyType({})))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _SETTINGS:
            raise AttributeError(_unknown(name))
        return self._patches.get().get(name, self._values[name])

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _SETTINGS:
            raise AttributeError(_unknown(name))
        self._values[name] = _SETTINGS[name].parse(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_SETTINGS})

    def __repr__(self) -> str:
        return "config(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in _SETTINGS) + ")"

    @contextlib.contextmanager
    def patch(self, **settings: Any) -> Iterator[None]:
        """Use other settings inside a with block.

            with thunder_fx.config.patch(verbose=True):
                compiled(x)

        Raises AttributeError for an unknown setting, ConfigError (a ValueError) for a value that it does not take;
        nothing is changed then.
        """
        for name in settings:
            if name not in _SETTINGS:
                raise AttributeError(_unknown(name))
        parsed = {name: _SETTINGS[name].parse(name, value) for name, value in settings.items()}
        token = self._patches.set({**self._patches.get(), **parsed})
        try:
            yield
        finally:
            self._patches.reset(token)


def _unknown(name: str) -> str:
    return f"thunder_fx.config has no setting {name!r}; it has: {', '.join(_SETTINGS)}"


config = Config()
