"""Every setting of the streaming processes: one frozen struct, parsed once.

A field is set by the environment variable `UNISCALE_<FIELD>` or by the flag of the same name; the
supervisor hands its own settings to the processes it starts through the environment.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from schemas.base import MAX_RECORD
from schemas.errors import UniscaleError

ENV_PREFIX = "UNISCALE_"

Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class SettingsError(UniscaleError, ValueError):
    """A setting cannot be used; the message names it and says what to write instead."""


SECRETS = ("sasl_password", "engine_key", "engine_keys", "encoder_key")
"""Settings that are never shown."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process needs to know before it starts. Times in seconds, sizes in bytes."""

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = "uniscale."
    guarantee: str = "at_least_once"

    security_protocol: Security = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str = ""
    sasl_password: str = ""
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""

    replication: int = 1
    query_partitions: int = 8
    join_partitions: int = 8
    # How many queries a group has in flight: each partition's handler awaits the engine.
    group_partitions: int = 32
    # One limit for producers, consumers, topics and the preflight.
    max_record_bytes: int = MAX_RECORD
    max_batch_bytes: int = 65_536

    session_timeout_s: float = 30.0
    rebalance_timeout_s: float = 60.0
    commit_interval_s: float = 1.0
    # Least time between two sends of a process, milliseconds: what comes meanwhile goes in one request.
    send_interval_ms: float = 10.0

    max_in_flight: int = 256
    heartbeat_s: float = 2.0
    heartbeat_grace_s: float = 15.0

    catalogue: str = "infra/catalogue/mini.yaml"
    eta: float = 1.2
    early_exit: bool = True
    # A step is given up, and its query answered `failed`, after so many attempts of one request to a model.
    engine_attempts: int = 3
    engine_threads: int = 0
    # API keys: one for the endpoints of the catalogue file, and host=key,host:port=key for others.
    engine_key: str = ""
    engine_keys: str = ""
    device: Literal["cpu", "gpu"] = "cpu"
    # Whether checkpoints must be folders; False asks the Hugging Face hub.
    offline: bool = True
    instruction: str = ""
    verifier_system: str = ""
    # A recording to answer from instead of engines: replays, and measuring the control plane.
    recorded: str = ""
    encoder: Literal["minilm", "http", "hashed"] = "minilm"
    encoder_url: str = ""
    encoder_model: str = ""
    encoder_dimension: int = 0
    encoder_key: str = ""

    policy: str = "linucb"
    policy_options: str = "{}"
    # A file made by `python -m experiments prior`: what the learner knows before its first decision. Read where its
    # log is empty; afterwards the log says what it began from.
    prior: str = ""
    # Rounds of uniform choice before the policy decides.
    warm_up: int = 50
    seed: int = 3
    # Decisions and updates between two snapshots of the learner, which lie among its rows in its changelog: it
    # alone is replicated, ordered with the rows and free of a disk of ours. 0 writes none, and keeps every row.
    snapshot_every: int = 10_000
    objective: str = "cost-sensitive"

    timeout_s: float = 600.0
    feedback_wait_s: float = 0.0

    # Where the gateway listens. Beyond this machine it needs an API key (`keys add`).
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 8080
    # Host names, separated by commas, that requests may be addressed to beside 127.0.0.1, localhost and [::1].
    gateway_hosts: str = ""
    # How many queries the gateway can look up by id.
    gateway_recent: int = 20_000

    state_dir: str = "out/state"
    metrics_port: int = 0
    log_level: str = "INFO"

    def __repr__(self) -> str:
        """Return what differs from the defaults, secrets hidden."""
        plain = type(self)()
        differs = {
            name: "***" if name in SECRETS else getattr(self, name)
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(plain, name)
        }
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in differs.items())})"

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the field."""
        if self.guarantee != "at_least_once":
            raise SettingsError(
                f"guarantee: {self.guarantee!r} is refused. faust's exactly-once mode loses and repeats "
                "records; use 'at_least_once': every handler here is idempotent by identity"
            )
        for name in (
            "replication", "query_partitions", "join_partitions", "group_partitions",
            "max_in_flight", "engine_attempts", "max_batch_bytes",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}: must be at least 1, is {getattr(self, name)}")
        for name in (
            "session_timeout_s",
            "rebalance_timeout_s",
            "commit_interval_s",
            "heartbeat_s",
            "timeout_s",
        ):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name}: must be above 0 seconds, is {getattr(self, name)}")
        if not self.send_interval_ms >= 0:
            raise SettingsError(
                f"send_interval_ms: must be 0 (send at once) or more, is {self.send_interval_ms}"
            )
        if self.snapshot_every < 0:
            raise SettingsError(f"snapshot_every: must be 0 (never) or more, is {self.snapshot_every}")
        if self.max_record_bytes < 65_536:
            raise SettingsError(f"max_record_bytes: must be at least 65536, is {self.max_record_bytes}")
        if self.security_protocol.startswith("SASL") and not self.sasl_username:
            raise SettingsError(f"sasl_username: needed by security_protocol {self.security_protocol}")
        if self.encoder == "http":
            if not self.encoder_url:
                raise SettingsError("encoder_url: needed by encoder 'http', e.g. http://host:8000/v1")
            if not self.encoder_model or self.encoder_dimension < 1:
                raise SettingsError("encoder_model and encoder_dimension: needed by encoder 'http'")
        if not all(part.strip() for part in self.bootstrap.split(",")):
            raise SettingsError(f"bootstrap: expected HOST:PORT[,HOST:PORT…], is {self.bootstrap!r}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> "Settings":
        """Return the settings of `environ`, overridden by the flags that are not None.

        Raises:
            SettingsError: a variable names no setting, or its value does not fit.
        """
        values: dict[str, Any] = {}
        fields = {f.name: f for f in msgspec.structs.fields(cls)}
        for variable, text in environ.items():
            if not variable.startswith(ENV_PREFIX):
                continue
            name = variable.removeprefix(ENV_PREFIX).lower()
            if name not in fields:
                raise SettingsError(
                    f"{variable}: there is no such setting; known: {', '.join(sorted(fields))}"
                )
            values[name] = text
        values |= {name: value for name, value in flags.items() if value is not None}
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, SettingsError):
                raise error.__cause__ from None
            raise SettingsError(_named(str(error), fields)) from None

    def environ(self) -> dict[str, str]:
        """Return the variables that make `from_env` give these settings again."""
        plain = type(self)()
        return {
            ENV_PREFIX + name.upper(): str(getattr(self, name))
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(plain, name)
        }

    def state_path(self, *parts: str) -> Path:
        """Return a path below the directory that holds logs and crash counts."""
        return Path(self.state_dir).joinpath(*parts)


def _named(text: str, fields: Mapping[str, msgspec.structs.FieldInfo]) -> str:
    name = text.rpartition("`$.")[2].rstrip("`")
    choices = get_args(fields[name].type) if name in fields else ()
    return f"{name}: {text}" + (f"; one of {', '.join(map(str, choices))}" if choices else "")
