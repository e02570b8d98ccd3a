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


def _one_of(*allowed: str) -> Callable[[str, object], Any]:
    def parse(name: str, value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in allowed:
            return value.strip().lower()
        raise ConfigError(f"{name} takes one of {', '.join(map(repr, allowed))}; found {value!r}")

    return parse


def _count(name: str, value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} takes a whole number from 0; found {value!r}")
    return value


def _folder(name: str, value: object) -> str | None:
    if value is None or isinstance(value, (str, os.PathLike)):
        return os.path.abspath(os.fspath(value)) if value else None
    raise ConfigError(f"{name} takes the path of a folder, or None; found {value!r}")


@dataclass(frozen=True)
class _Setting:
    environment: str
    parse: Callable[[str, object], Any]
    default: Any


_SETTINGS: dict[str, _Setting] = {
    # Logs each captured graph, its regions and seconds, as they finish, to the logger "thunder_fx".
    "verbose": _Setting("THUNDER_FX_VERBOSE", _boolean, False),
    # "values": a graph that is compiled while this is set keeps copies of what it is given in each call, the last ones,
    # for save_reproducer(fn, folder, inputs="real").
    "capture_inputs": _Setting("THUNDER_FX_CAPTURE_INPUTS", _one_of("off", "values"), "off"),
    # How many MiB of a call's inputs are kept at most, by the setting above or of a call that failed.
    "capture_limit": _Setting("THUNDER_FX_CAPTURE_LIMIT", _count, 256),
    # Where a region or a compilation that fails leaves a reproducer; None: it leaves none.
    "repro_dir": _Setting("THUNDER_FX_REPRO_DIR", _folder, None),
}


class Config:
    """The settings in force here: `config.verbose`, and `with config.patch(verbose=True): ...`.

    A patch holds for the thread or asyncio task that made it; an assignment, `config.verbose = True`, for the process.
    """

    verbose: bool
    capture_inputs: str
    capture_limit: int
    repro_dir: str | None

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        values = {
            name: setting.parse(setting.environment, environment[setting.environment])
            if setting.environment in environment
            else setting.default
            for name, setting in _SETTINGS.items()
        }
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_listeners", [])
        object.__setattr__(self, "_patches", contextvars.ContextVar("thunder_fx.config", default=MappingProxyType({})))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _SETTINGS:
            raise AttributeError(_unknown(name))
        return self._patches.get().get(name, self._values[name])

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _SETTINGS:
            raise AttributeError(_unknown(name))
        self._values[name] = _SETTINGS[name].parse(name, value)
        self._tell({name: self._values[name]})

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_SETTINGS})

    def __repr__(self) -> str:
        return "config(" + ", ".join(f"{name}={getattr(self, name)!r}" for name in _SETTINGS) + ")"

    def on_change(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Have a function called with the settings that an assignment or a patch makes, once they are in force."""
        self._listeners.append(listener)

    def _tell(self, settings: Mapping[str, Any]) -> None:
        for listener in self._listeners:
            listener(settings)

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
            self._tell(parsed)
            yield
        finally:
            self._patches.reset(token)


def _unknown(name: str) -> str:
    return f"thunder_fx.config has no setting {name!r}; it has: {', '.join(_SETTINGS)}"


config = Config()
