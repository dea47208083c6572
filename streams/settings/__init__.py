"""Every setting of the streaming processes, in one frozen struct of sections, parsed once.

Each setting has one name: its environment variable is `UNISCALE_<NAME>`, and flags of the command line and
`Settings.replace` use the same name. The supervisor passes its settings to its processes through the environment.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from streams.settings.sections import (
    ENV_PREFIX,
    SECRETS,
    Encoder,
    Engine,
    Executor,
    Gateway,
    Kafka,
    Policy,
    Previews,
    Queries,
    Section,
    Security,
    SettingsError,
    variable,
)

__all__ = [
    "Encoder",
    "Engine",
    "Executor",
    "Gateway",
    "Kafka",
    "Policy",
    "Previews",
    "Queries",
    "SECRETS",
    "Security",
    "SettingsError",
    "variable",
    "Settings",
]

S = TypeVar("S", bound=Section)


class Settings(Section, frozen=True):
    """What a process needs to know before it starts. Times in seconds, sizes in bytes.

    >>> settings = Settings(kafka=Kafka(prefix="trial."))
    >>> settings.replace(policy_options='{"alpha": 0.5}')
    Settings(kafka=Kafka(prefix='trial.'), policy=Policy(options={'alpha': 0.5}))
    """

    catalogue: str = "infra/catalogue/mini.yaml"
    state_dir: str = "out/state"
    metrics_port: int = 0
    log_level: str = "INFO"
    kafka: Kafka = Kafka()
    security: Security = Security()
    queries: Queries = Queries()
    executor: Executor = Executor()
    engine: Engine = Engine()
    encoder: Encoder = Encoder()
    policy: Policy = Policy()
    gateway: Gateway = Gateway()
    previews: Previews = Previews()

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> "Settings":
        """Return the settings of `environ`, overridden by the flags that are not None.

        Raises:
            SettingsError: a variable names no setting, or its value does not fit.
        """
        given = {
            name.removeprefix(ENV_PREFIX).lower(): text
            for name, text in environ.items()
            if name.startswith(ENV_PREFIX)
        }
        return cls().replace(**given | {name: value for name, value in flags.items() if value is not None})

    def replace(self, **values: Any) -> "Settings":
        """Return these settings with others in place of the named ones.

        Args:
            **values: Values, or their text in the environment, by the names of the settings.

        Raises:
            SettingsError: there is no such setting, or a value does not fit.
        """
        fields = {field.encode_name: field for _, field in _fields()}
        for name in values:
            if name not in fields:
                raise SettingsError(
                    f"{variable(name)}: there is no such setting; known: {', '.join(sorted(fields))}"
                )
        now: dict[str, dict[str, Any]] = {}
        for section, field in _fields():
            name = field.encode_name
            held = getattr(self, section) if section else self
            given = _parsed(field, values[name]) if name in values else getattr(held, field.name)
            now.setdefault(section, {})[name] = given
        plain = now.pop("")
        sections = {
            section: _converted(given, type(getattr(self, section))) for section, given in now.items()
        }
        return _converted({**plain, **sections}, Settings)

    def variables(self, *, secrets: bool = False) -> dict[str, str]:
        """Return every setting as its environment variable and its text, without the secrets unless asked."""
        found = {}
        for section, field in _fields():
            value = getattr(getattr(self, section) if section else self, field.name)
            hidden = field.encode_name in SECRETS and value and not secrets
            found[variable(field.encode_name)] = "***" if hidden else _text(value)
        return found

    def environ(self) -> dict[str, str]:
        """Return the variables that make `from_env` give these settings again."""
        plain = Settings().variables(secrets=True)
        return {name: text for name, text in self.variables(secrets=True).items() if text != plain[name]}

    def state_path(self, *parts: str) -> Path:
        """Return a path below the directory that holds logs and crash counts."""
        return Path(self.state_dir).joinpath(*parts)


def _fields() -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """Yield every setting with the section that holds it, "" for those of `Settings` itself."""
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            for inner in msgspec.structs.fields(field.type):
                yield field.name, inner
        else:
            yield "", field


def _parsed(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    """Return a value whose text is JSON or a list separated by commas; any other value as it is."""
    if not isinstance(value, str):
        return value
    if get_origin(field.type) is tuple:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if get_origin(field.type) is not dict:
        return value
    try:
        return msgspec.json.decode(value, type=field.type)
    except msgspec.DecodeError:
        raise SettingsError(
            f"""{variable(field.encode_name)}: must be a JSON object, e.g. {{"name": 1}}, is {value!r}"""
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _converted(values: Mapping[str, Any], kind: type[S]) -> S:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        name = str(error).rpartition("`$.")[2].rstrip("`")
        expected = next(field.type for _, field in _fields() if field.encode_name == name)
        choices = ", ".join(map(str, get_args(expected)))
        wanted = f"one of {choices}" if choices else f"a value of type {expected.__name__}"
        raise SettingsError(f"{variable(name)}: must be {wanted}, is {values[name]!r}") from None
