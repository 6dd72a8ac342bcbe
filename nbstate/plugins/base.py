"""What all configuration dataclasses share: the difference from their defaults, and checks."""

from __future__ import annotations

import copy
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nbstate.mistakes import told_at_the_call

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from typing_extensions import Self

PluginType = TypeVar("PluginType", bound="Plugin")


@dataclass
class Plugin:
    """The base of the configuration dataclasses."""

    # Fields of Accelerate's class of the same name that only repeat what other fields say.
    _derived_elsewhere: ClassVar[Collection[str]] = ()

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from their defaults, ready to be passed on.

        Examples
        --------
        >>> AutocastKwargs(enabled=False).to_kwargs()
        {'enabled': False}
        """
        return {
            field.name: copy.copy(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != _default(field)
        }

    @classmethod
    def from_elsewhere(cls, given: Any) -> Self:
        """The same settings from an object of the same name of another library.

        Raises
        ------
        ValueError
            It sets something that this class does not have.

        Examples
        --------
        >>> import accelerate
        >>> AutocastKwargs.from_elsewhere(accelerate.utils.AutocastKwargs(enabled=False))
        AutocastKwargs(enabled=False, cache_enabled=None)
        """
        said = _settings(given)
        known = {field.name for field in fields(cls)}
        foreign = sorted(said.keys() - known - set(cls._derived_elsewhere))
        if foreign:
            raise ValueError(
                f"the {cls.__name__} of {type(given).__module__.partition('.')[0]} sets "
                f"{', '.join(foreign)}, which nbstate's does not have; leave that out, or use "
                f"nbstate.{cls.__name__}"
            )
        return cls(**{name: value for name, value in said.items() if name in known})

    def _refuse(self, name: str, allowed: str) -> None:
        value = getattr(self, name)
        with told_at_the_call():
            raise ValueError(f"{type(self).__name__}: {name}={value!r} must be {allowed}")

    def _check_one_of(self, name: str, choices: Collection[object]) -> None:
        if getattr(self, name) not in choices:
            self._refuse(name, "one of " + ", ".join(map(repr, choices)))

    def _check_count(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self._refuse(name, "a whole number, 1 or more")


def adopt(cls: type[PluginType], given: object, argument: str) -> PluginType | None:
    """The given plugin as one of ours: itself, or made from another library's of the same name.

    Raises
    ------
    TypeError
        It is neither; the argument and what belongs there are named.
    """
    if given is None or isinstance(given, cls):
        return given
    if type(given).__name__ == cls.__name__:
        return cls.from_elsewhere(given)
    raise TypeError(f"{argument} must be a {cls.__name__}, not {given!r}")


def _settings(given: Any) -> Mapping[str, Any]:
    """What was set on another library's object: the fields that a fresh one has otherwise."""
    try:
        fresh = type(given)()
        usual = {field.name: getattr(fresh, field.name) for field in fields(given)}
    except (TypeError, ValueError, AssertionError, ImportError):
        usual = {field.name: _default(field) for field in fields(given)}
    said = {field.name: getattr(given, field.name) for field in fields(given)}
    # Enums go by their value, in the lower case that torch and our own fields use.
    return {
        name: str(value.value).lower() if isinstance(value, Enum) else value
        for name, value in said.items()
        if value is not None and value != usual[name]
    }


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
