"""All settings for the streaming processes, in one frozen struct of sections, parsed once.

Each setting has one name. It is set as UNISCALE_<NAME> in the environment or by that name in one configuration file,
`uniscale.yaml`; the command line overrides the environment, the environment overrides the file, and the file overrides
the defaults. The supervisor passes its settings to its processes through the environment, and they read the same file.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from agents.catalogue.file import decode_objective, read_yaml
from agents.catalogue.models import CatalogueError
from agents.decider.categories import ContextKeys, ContextKeysRefused
from schemas.control import ObjectiveEntry
from schemas.dead_letter import HEAD_BYTES
from schemas.errors import UniscaleError, closest
from schemas.query import MAX_TIMEOUT_S, MAX_WAIT_S
from schemas.record import MAX_RECORD

# The settings by subject: one frozen struct each, with defaults and validation.

ENV_PREFIX: Final = "UNISCALE_"

SECRETS: Final = ("sasl_password", "engine_key", "engine_keys", "encoder_key")
"""The settings whose values are never shown. UNISCALE_<NAME>_FILE names a file that contains the value."""

SECRET_OPTIONS: Final = ("control_salt",)
"""The policy options whose values are never shown."""


MAX_PORT: Final = 65_535

log = logging.getLogger("streams.settings")

# Variables that Kubernetes sets in every pod for each Service of the namespace: the addresses of
# `uniscale-gateway` are in UNISCALE_GATEWAY_SERVICE_HOST, UNISCALE_GATEWAY_PORT_8080_TCP_ADDR, …
_SERVICE_LINK: Final = re.compile(
    rf"{ENV_PREFIX}(.*_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
# … and in UNISCALE_GATEWAY_PORT, which is also the name of a setting, but the setting's value is a number.
_LINKED_PORT: Final = re.compile(rf"{ENV_PREFIX}(.*_)?PORT=(tcp|udp|sctp)://.*")


def masked(value: Any) -> Any:
    """Return a setting's value, hiding any secrets among a policy's options."""
    if not isinstance(value, dict):
        return value
    return {name: "***" if name in SECRET_OPTIONS and each else each for name, each in value.items()}


def variable(name: str) -> str:
    """Return a setting's environment variable."""
    return ENV_PREFIX + name.upper()


class SettingsError(UniscaleError, ValueError):
    """A setting is invalid. The message names the setting and where it was set, and says what to write instead.

    Attributes:
        name: The setting's name; empty if several or none are at fault.
        why: What is wrong and what to do, without the name.
    """

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(f"{variable(name)}: {why}" if name else why)
        self.name = name
        self.why = why


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings on one subject. A field's encoded name is its setting's name.

    Attributes:
        LEAST: Minimum values of fields.
        MOST: Maximum values of fields.
        ABOVE_0: Fields, in seconds, whose values must be above 0.
    """

    LEAST: ClassVar[Mapping[str, int]] = {}
    MOST: ClassVar[Mapping[str, float]] = {}
    ABOVE_0: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, float):
                self._require(math.isfinite(value), field, "must be a finite number")
        for field, least in self.LEAST.items():
            value = getattr(self, field)
            self._require(value is None or value >= least, field, f"must be at least {least}")
        for field, most in self.MOST.items():
            value = getattr(self, field)
            self._require(value is None or value <= most, field, f"must be at most {most:.0f}")
        for field in self.ABOVE_0:
            self._require(getattr(self, field) > 0, field, "must be above 0 seconds")

    def __repr__(self) -> str:
        """Return the values that differ from the defaults, with secrets hidden."""
        plain = type(self)()
        shown = [
            f"{field.name}={'***' if field.encode_name in SECRETS else repr(masked(getattr(self, field.name)))}"
            for field in msgspec.structs.fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _require(self, holds: bool, field: str, why: str) -> None:
        """Refuse a field's value unless a condition holds.

        Raises:
            SettingsError: the condition does not hold.
        """
        if not holds:
            name = next(f.encode_name for f in msgspec.structs.fields(self) if f.name == field)
            raise SettingsError(f"{why}; got {getattr(self, field)!r}", name)


class KafkaSettings(Section, frozen=True):
    """The broker, topics and client limits. Sizes in bytes."""

    LEAST: ClassVar = {
        **dict.fromkeys(("replication", "query_partitions", "join_partitions", "group_partitions"), 1),
        "concurrency": 1,
        "max_record_bytes": 65_536,
        "send_interval_ms": 0,
    }
    # Bytes and milliseconds are 32-bit numbers in Kafka's protocol.
    MOST: ClassVar = {
        **dict.fromkeys(("session_timeout_s", "rebalance_timeout_s", "commit_interval_s"), 86_400),
        "max_record_bytes": 1 << 30,
        "send_interval_ms": 60_000,
    }
    ABOVE_0: ClassVar = ("session_timeout_s", "rebalance_timeout_s", "commit_interval_s")

    # HOST:PORT of one broker, or of several separated by commas.
    bootstrap: str = "127.0.0.1:9092"
    # Prefix of every topic and consumer group.
    prefix: str = "uniscale."
    # Number of replicas for each topic that `topics create` creates; use 3 in production.
    replication: int = 1
    # Number of partitions of `query`. A service can have as many workers as its topics have partitions. This and the
    # next two must keep the values that the topics were created with.
    query_partitions: int = 2
    # Number of partitions of `action-decision`, `answer`, `feedback`, `due` and the aggregator's table.
    join_partitions: int = 2
    # Number of partitions of `search-step`, `answer-chunk`, and each group's `action-decision`, `verification` and
    # `cancel`.
    group_partitions: int = 2
    # Maximum number of records, each from a different query, that a worker handles concurrently.
    concurrency: int = 256
    # Maximum size of a record, for producers, consumers and topics alike.
    max_record_bytes: int = MAX_RECORD
    # How much of a failed record its dead letter keeps, including a Query's prompt. 0 keeps nothing.
    dead_letter_bytes: int = HEAD_BYTES
    # How long a worker may go without sending a heartbeat before the broker reassigns its partitions.
    session_timeout_s: float = 30.0
    # How long a worker may take to rejoin the group during a rebalance.
    rebalance_timeout_s: float = 60.0
    # Time between two offset commits. Records since the last one are redelivered after a crash.
    commit_interval_s: float = 1.0
    # Minimum time between two produce requests of a process; records sent in between share the next request.
    send_interval_ms: float = 10.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        super().__post_init__()
        listed = all(part.strip() for part in self.bootstrap.split(","))
        self._require(listed, "bootstrap", "must be HOST:PORT[,HOST:PORT…]")
        named = re.fullmatch(r"[A-Za-z0-9._-]*", self.prefix) is not None
        self._require(
            named, "prefix", "may contain only letters, digits, '.', '_' and '-', like a topic name"
        )
        kept = 0 <= self.dead_letter_bytes <= HEAD_BYTES
        self._require(kept, "dead_letter_bytes", f"must be 0 (keep none) to {HEAD_BYTES}")


class SecuritySettings(Section, frozen=True, rename={"protocol": "security_protocol"}):
    """TLS and SASL for every connection to the broker."""

    # Security protocol for connections to the broker.
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    # How clients authenticate if the protocol is SASL_….
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    # User name for PLAIN and SCRAM.
    sasl_username: str = ""
    # Password for PLAIN and SCRAM. Secret.
    sasl_password: str = ""
    # For OAUTHBEARER: a file with the current token, read again for every connection.
    sasl_token_file: str = ""
    # PEM file with the authorities that sign the brokers' certificates; empty: the system's.
    ssl_cafile: str = ""
    # PEM file with this process's own certificate, if brokers require one.
    ssl_certfile: str = ""
    # PEM file with that certificate's private key; empty: the key is in the certificate's file.
    ssl_keyfile: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.protocol.startswith("SASL"):
            if self.sasl_mechanism == "OAUTHBEARER":
                needs = f"must be set when {variable('sasl_mechanism')}=OAUTHBEARER"
                self._require(bool(self.sasl_token_file), "sasl_token_file", needs)
            else:
                needs = f"must be set when {variable('security_protocol')}={self.protocol}"
                self._require(bool(self.sasl_username), "sasl_username", needs)


MIXED_WAIT_S: Final = 3600.0
"""Default for `feedback_wait_s` if some models have a verifier and others have none."""


class QuerySettings(Section, frozen=True):
    """Defaults for queries, and limits on how many are in flight."""

    LEAST: ClassVar = {
        **dict.fromkeys(("max_in_flight", "max_open_rewards", "max_open_rewards_per_account", "attempts"), 1),
        **dict.fromkeys(("feedback_wait_s", "session_s"), 0),
    }
    MOST: ClassVar = {"timeout_s": MAX_TIMEOUT_S, "feedback_wait_s": MAX_WAIT_S, "attempts": 10}
    ABOVE_0: ClassVar = ("timeout_s",)

    # Maximum number of queries, over all tenants, that are admitted but not yet answered; others wait in the embedder.
    max_in_flight: int = 256
    # Timeout for queries that set none. A query that exceeds its timeout is answered `expired`.
    timeout_s: float = 600.0
    # Maximum number of attempts at a query: if its model fails before sending any text, another model is chosen. 1: no
    # retries.
    attempts: int = 2
    # How long a conversation keeps its configuration after a turn. 0: each turn is decided separately.
    session_s: float = 300.0
    # How long a reward waits for feedback after the answer, if the query has no reference and sets no wait itself.
    # Unset: an hour if some models have a verifier and others do not, because then no score replaces a grade;
    # otherwise 0.
    feedback_wait_s: float | None = None
    # Maximum number of rewards that may wait for feedback. Beyond this, the oldest reward of the account with the most
    # open ones is closed ungraded. Each partition of the join gets an equal share.
    max_open_rewards: int = 100_000
    # The same limit for each account (a tenant, or an API key without one).
    max_open_rewards_per_account: int = 100_000
    # Objective for queries that name none. Empty: `careful` with the policy `contextual`, which supports accuracy
    # targets; otherwise `cost-sensitive`.
    objective: str = ""
    # Objectives besides the built-in ones, by name, each with one of `weights`, `mean_cost` and `accuracy`. They are
    # only the initial state: records on `control` override them.
    objectives: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        super().__post_init__()
        self.own_objectives()

    def feedback_waits_s(self, *, mixed: bool) -> float:
        """Return `feedback_wait_s` or its default, which depends on whether only some models have a verifier."""
        if self.feedback_wait_s is None:
            return MIXED_WAIT_S if mixed else 0.0
        return self.feedback_wait_s

    def own_objectives(self) -> dict[str, ObjectiveEntry]:
        """Return the deployment's own objectives by name.

        Raises:
            SettingsError: an objective is invalid; the message names the objective, its field and the fix.
        """
        try:
            return {name: decode_objective(name, asked) for name, asked in self.objectives.items()}
        except CatalogueError as error:
            raise SettingsError(str(error), "objectives") from None


class ExecutorSettings(Section, frozen=True):
    """The search (Section 3.3 of the paper) and the executor's heartbeat."""

    LEAST: ClassVar = {"eta": 1, "heartbeat_grace_s": 0, "probes_per_minute": 1}
    MOST: ClassVar = {"heartbeat_s": 86_400, "heartbeat_grace_s": 86_400}
    ABOVE_0: ClassVar = ("heartbeat_s", "probe_timeout_s")

    # Ratio of the depth limit to the best completed path's depth: H_max = ceil(eta · D_best).
    eta: float = 1.2
    # Whether to stop paths that cannot win or that reach H_max.
    early_exit: bool = True
    # Whether a path cut at the depth limit counts as completed, as in the paper (docs/readings.md, "Search").
    cut_completes: bool = False
    # Time between an executor's heartbeats; after three missed ones its models are not chosen.
    heartbeat_s: float = 2.0
    # How long a decider that has just started waits for executors before it excludes models.
    heartbeat_grace_s: float = 15.0
    # Probe question for a model whose queries fail, sent as a search would send it. Any text counts as an answer; three
    # failures in a row suspend the model until a probe passes. Models and verifiers that run in a process are also
    # asked this question once they are loaded.
    probe_question: str = "How much is 2 plus 3?"
    # How long a probe waits for the first step of its answer.
    probe_timeout_s: float = 60.0
    # Maximum number of probes per minute that one executor sends to one model.
    probes_per_minute: int = 6

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        super().__post_init__()
        self._require(bool(self.probe_question.strip()), "probe_question", "is empty; ask something")


class ServingSettings(
    Section,
    frozen=True,
    rename={
        "attempts": "engine_attempts",
        "threads": "engine_threads",
        "key": "engine_key",
        "keys": "engine_keys",
    },
):
    """How models are loaded or called: generators and verifiers."""

    LEAST: ClassVar = {"attempts": 1, "threads": 0}

    # Maximum number of attempts at one request to a model; if the last one fails, the step fails, and so does the
    # attempt at its query.
    attempts: int = 3
    # Number of threads for an engine in this process; 0: one per core.
    threads: int = 0
    # API key for the endpoints in the catalogue file. Secret.
    key: str = ""
    # API keys for other endpoints, as host=key,host:port=key. Secret.
    keys: str = ""
    # Device for models in this process.
    device: Literal["cpu", "gpu"] = "cpu"
    # Whether checkpoints must be local folders; false allows the Hugging Face hub.
    offline: bool = True
    # System message for conversations without one, such as an instruction to reason step by step; empty: none.
    instruction: str = ""
    # Which of the catalogue's verifiers to use, or `none`; empty: the verifier that the catalogue names.
    verifier: str = ""
    # System message for a step-tag verifier; empty: none.
    verifier_system: str = ""
    # A recording that answers in place of engines, for replays and for benchmarks of the control plane.
    recorded: str = ""


class EncoderSettings(
    Section,
    frozen=True,
    rename={
        "kind": "encoder",
        "url": "encoder_url",
        "model": "encoder_model",
        "dimension": "encoder_dimension",
        "key": "encoder_key",
    },
):
    """The encoder for queries and actions."""

    # The kind of encoder: MiniLM in this process, an OpenAI-compatible server, or hashed words for tests.
    kind: Literal["minilm", "http", "hashed"] = "minilm"
    # URL of the encoder's server, up to and including /v1.
    url: str = ""
    # The model's name on that server.
    model: str = ""
    # Dimension of the vectors that the server returns.
    dimension: int = 0
    # API key for that server. Secret.
    key: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.kind == "http":
            needed = f"must be set when {variable('encoder')}=http"
            self._require(
                self.url.startswith(("http://", "https://")), "url", f"{needed}, e.g. http://host:8000/v1"
            )
            self._require(bool(self.model), "model", needed)
            self._require(
                self.dimension >= 1, "dimension", f"must be at least 1 when {variable('encoder')}=http"
            )


class PolicySettings(Section, frozen=True, rename={"name": "policy", "options": "policy_options"}):
    """The decider's policy and its log."""

    LEAST: ClassVar = {"warm_up": 0, "snapshot_every": 0, "remembered_ids": 1}

    # The policy that chooses configurations; docs/policies.md lists them.
    name: str = "contextual"
    # Options of the policy; docs/policies.md lists them.
    options: dict[str, Any] = {}
    # Configurations on offer for each model, as QP/CP, such as 1/1,4/1,4/16. Empty: the catalogue's, or else all;
    # `all`: all 28 of Table 1. A query pinned to any other configuration is refused. Deciders and gateways must have
    # the same value. A new value applies after a restart, and everything learned so far is kept.
    parallelism: tuple[str, ...] = ()
    # A file made by `python -m streams prior` for the learner to start from. It is read only while the learner's log is
    # empty; afterwards the log contains it. Empty: the prior that the catalogue names, if it matches the policy, the
    # encoder and the models; `none`: no prior.
    prior: str = ""
    # Number of rounds of uniform choice before the policy decides; with a prior, there are none. Empty: none with
    # the policy `contextual`, which explores by its own uncertainty; otherwise the paper's 50.
    warm_up: int | None = None
    # Metadata keys of queries that the policy learns from, each with its values, such as {route: [chat, code]}; at most
    # 64 values in total. docs/categories.md explains which keys help.
    context_keys: dict[str, Any] = {}
    # Seed for all random draws: exploration, and each query's own seed.
    seed: int = 3
    # Number of decisions and updates between two snapshots of the learner. Ended rows stay in its memory and log until
    # two snapshots contain them. 0: no snapshots are written, and every row is kept.
    snapshot_every: int = 10_000
    # Maximum number of ended queries' ids, of 16 bytes each, that are recognised as duplicates while their Query or
    # Context is still on the broker.
    remembered_ids: int = 10_000_000

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        super().__post_init__()
        self.keys()
        if not self.options:
            return
        from agents.bandit.errors import PolicyRefused  # imports numpy, which not every process needs
        from agents.bandit.registry import options_of

        try:
            options_of(self.name, self.options)
        except PolicyRefused as error:
            field, _, why = str(error).partition(": ")
            raise SettingsError(why, field) from None

    def keys(self) -> ContextKeys:
        """Return the metadata keys that the policy learns from.

        Raises:
            SettingsError: a key is invalid; the message names the key and the fix.
        """
        try:
            return ContextKeys.of(self.context_keys)
        except ContextKeysRefused as error:
            raise SettingsError(str(error), "context_keys") from None


class GatewaySettings(Section, frozen=True, rename=lambda field: f"gateway_{field}"):
    """The gateway: where it listens, and its limits."""

    LEAST: ClassVar = {"port": 0, "recent": 1, "streams": 0, "reads": 1}
    MOST: ClassVar = {"port": MAX_PORT}

    # Address the gateway listens on. If other machines can reach it, an API key is required (`keys add`).
    host: str = "127.0.0.1"
    # Port the gateway listens on; 0: any free port.
    port: int = 8080
    # Host names, besides 127.0.0.1, localhost and [::1], that requests may be addressed to.
    hosts: tuple[str, ...] = ()
    # How many recent queries can be looked up by id.
    recent: int = 20_000
    # Maximum number of streams an API key may have open at once.
    streams: int = 256
    # Maximum number of GET requests per minute for each API key, and of feedback requests for a key without
    # `--per-minute`.
    reads: int = 600
    # Metadata keys by which the page groups choices.
    group_by: tuple[str, ...] = ("family", "level")
    # Whether to refuse a request with a field that has no effect, rather than answer it and name the field.
    strict: bool = False


class PreviewSettings(
    Section,
    frozen=True,
    rename={"host": "decider_host", "port": "decider_port", "urls": "decider_url"},
):
    """Previews of decisions: where a decider serves them and a gateway requests them."""

    LEAST: ClassVar = {"port": 0}
    MOST: ClassVar = {"port": MAX_PORT}

    # Address a decider answers previews on. Keep it inside your network: the decider requires no key.
    host: str = "127.0.0.1"
    # Port a decider answers previews on; 0 serves none.
    port: int = 0
    # URLs of the deciders that a gateway asks for previews, in order; empty: the decider's port on this machine.
    urls: tuple[str, ...] = ()


__all__ = [
    "EncoderSettings",
    "ServingSettings",
    "ExecutorSettings",
    "GatewaySettings",
    "KafkaSettings",
    "PolicySettings",
    "PreviewSettings",
    "QuerySettings",
    "SECRETS",
    "SecuritySettings",
    "SettingsError",
    "variable",
    "Settings",
]

S = TypeVar("S", bound=Section)


class Settings(Section, frozen=True):
    """A process's settings. Times are in seconds, sizes in bytes.

    >>> settings = Settings(kafka=KafkaSettings(prefix="trial."))
    >>> settings.replace(policy_options='{"alpha": 0.5}')
    Settings(kafka=KafkaSettings(prefix='trial.'), policy=PolicySettings(options={'alpha': 0.5}))
    """

    LEAST: ClassVar = {"metrics_port": 0}
    MOST: ClassVar = {"metrics_port": MAX_PORT}

    # The configuration file. The default file is read only if it exists; empty: none is read.
    config: str = "uniscale.yaml"
    # The model catalogue: a file or, in the configuration file, the catalogue itself.
    catalogue: str = "infra/catalogue/mini.yaml"
    # Directory for crash counts, locks of instance names, cached action vectors and logs; keep it across restarts.
    state_dir: str = "out/state"
    # Address that metrics and health probes are served on. They need no key: anyone who can reach the address can read
    # them.
    metrics_host: str = "127.0.0.1"
    # Port for a service's metrics and health probes; 0 serves neither. `up` gives each further service the next port.
    metrics_port: int = 0
    # Lowest level of messages to show in the process log.
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    kafka: KafkaSettings = KafkaSettings()
    security: SecuritySettings = SecuritySettings()
    queries: QuerySettings = QuerySettings()
    executor: ExecutorSettings = ExecutorSettings()
    engine: ServingSettings = ServingSettings()
    encoder: EncoderSettings = EncoderSettings()
    policy: PolicySettings = PolicySettings()
    gateway: GatewaySettings = GatewaySettings()
    previews: PreviewSettings = PreviewSettings()

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> "Settings":
        """Return the configuration file's settings, overridden by `environ`, then by the flags that are not None.

        Raises:
            SettingsError: a key of the file or a variable is unknown or has an invalid value; the message names it.
        """
        layers = _layers(environ, flags)
        if links := service_links(environ):
            log.warning(
                "ignored, because Kubernetes sets these for Services whose names begin with `uniscale`: %s. "
                "`enableServiceLinks: false` in the pod's spec leaves them out",
                ", ".join(sorted(links)),
            )
        given = {name: value for layer in layers.values() for name, value in layer.items()}
        try:
            return cls().replace(**given)
        except SettingsError as error:
            path, by = next(iter(layers)), [where for where, layer in layers.items() if error.name in layer]
            if by != [path]:
                raise
            raise SettingsError(f"{path}: {error.name}: {error.why}") from None

    def replace(self, **values: Any) -> "Settings":
        """Return a copy of these settings with the named ones replaced.

        Args:
            **values: Values, or their text as in the environment, by setting name.

        Raises:
            SettingsError: there is no such setting, or a value is invalid.
        """
        fields = {field.encode_name: field for _, field in _fields()}
        for name in values:
            if name not in fields:
                raise SettingsError(f"there is no such setting; {closest(name, fields)}", name)
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
        """Return the text of every setting by environment variable, without secrets unless requested."""
        found = {}
        for section, field in _fields():
            value = getattr(getattr(self, section) if section else self, field.name)
            hidden = field.encode_name in SECRETS and value and not secrets
            shown = value if secrets else masked(value)
            found[variable(field.encode_name)] = "***" if hidden else _text(shown)
        return found

    def environ(self, around: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return `around` with its settings replaced, so that `from_env` reproduces these settings from it.

        Values from the configuration file are left out, because a child process reads the file too.
        """
        plain = Settings().variables(secrets=True)
        plain |= {variable(name): _text(value) for name, value in _read_config(self.config).items()}
        others = {name: text for name, text in (around or {}).items() if not name.startswith(ENV_PREFIX)}
        own = self.variables(secrets=True)
        return others | {name: text for name, text in own.items() if text != plain[name]}

    def state_path(self, *parts: str) -> Path:
        """Return a path below the directory that holds logs and crash counts."""
        return Path(self.state_dir).joinpath(*parts)


def service_links(environ: Mapping[str, str]) -> set[str]:
    """Return the variables that contain a Kubernetes Service's address rather than a setting.

    >>> service_links({"UNISCALE_GATEWAY_PORT": "tcp://10.0.0.7:8080", "UNISCALE_METRICS_PORT": "9100"})
    {'UNISCALE_GATEWAY_PORT'}
    """
    return {
        name
        for name, text in environ.items()
        if _SERVICE_LINK.fullmatch(name) or _LINKED_PORT.fullmatch(f"{name}={text}")
    }


def origins(environ: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return where each setting's value comes from, by variable, given the arguments of `from_env`."""
    found = {variable(field.encode_name): "default" for _, field in _fields()}
    for where, layer in _layers(environ, flags).items():
        found |= {variable(name): where for name in layer}
    return found


def _layers(environ: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values set by name in the configuration file, the environment and the command line, in this order."""
    links = service_links(environ)
    given = {
        name.removeprefix(ENV_PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(ENV_PREFIX) and name not in links
    }
    for name in SECRETS:
        if file := given.pop(f"{name}_file", ""):
            if given.get(name):
                raise SettingsError(
                    f"is given as well as {variable(name)}_FILE; leave it out, the file holds it", name
                )
            given[name] = _secret(name, file)
    said = {name: value for name, value in flags.items() if value is not None}
    path = said.get("config", given.get("config"))
    held = _read_config(Settings().config) if path is None else _read_config(path, needed=True)
    return {path or Settings().config: held, "environment": given, "command line": said}


def _secret(name: str, file: str) -> str:
    """Return a file's contents without the final newline; an empty file contains no secret.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{file} cannot be read ({error}); name a file that holds the secret", f"{name}_file"
        ) from None


def _read_config(path: str, *, needed: bool = False) -> dict[str, Any]:
    """Return the values set in a configuration file, by name; empty if the file is missing and not required.

    A catalogue may be written inline: see `agents.catalogue.file`.

    Raises:
        SettingsError: the file is not a mapping of names to values, or it sets `config`.
    """
    if not path or not (needed or Path(path).exists()):
        return {}
    try:
        held = read_yaml(Path(path), "a configuration file")
    except CatalogueError as error:
        raise SettingsError(str(error)) from None
    if "config" in held:
        raise SettingsError(f"{path}: config: is this file; leave it out")
    if isinstance(held.get("catalogue"), dict):
        held["catalogue"] = path
    return held


def _fields() -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """Yield every setting with its section, "" for those of `Settings` itself."""
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            for inner in msgspec.structs.fields(field.type):
                yield field.name, inner
        else:
            yield "", field


def _parsed(field: msgspec.structs.FieldInfo, value: Any) -> Any:
    """Parse JSON or a comma-separated list, turn an empty string into None, and return any other value unchanged."""
    if not isinstance(value, str):
        return value
    if not value and NoneType in get_args(field.type):
        return None
    if field.name == "log_level":
        return value.upper()
    if get_origin(field.type) is tuple:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if get_origin(field.type) is not dict:
        return value
    try:
        return msgspec.json.decode(value, type=field.type)
    except msgspec.DecodeError as error:  # the value itself may hold a secret
        raise SettingsError(
            f"""must be a JSON object, e.g. {{"name": 1}}: {error}""", field.encode_name
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _converted(values: Mapping[str, Any], kind: type[S]) -> S:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SettingsError):
            raise error.__cause__ from None
        name = re.findall(r"\$\.(\w+)", str(error))[-1]  # without the index in a list or mapping
        expected = next(field.type for _, field in _fields() if field.encode_name == name)
        shown = "***" if name in SECRETS else repr(values[name])
        raise SettingsError(f"must be {_wanted(expected, values[name])}; got {shown}", name) from None


def _wanted(expected: Any, given: Any) -> str:
    """Describe the values that a setting of this type accepts."""
    if get_origin(expected) is tuple:
        return "a list of texts, or one text with commas"
    if get_origin(expected) is dict:
        return "a mapping"
    choices = [each for each in get_args(expected) or (expected,) if each is not NoneType]
    if not isinstance(choices[0], type):
        return f"one of {', '.join(choices)}"
    quotes = " in quotes" if choices[0] is str and isinstance(given, int | float) else ""
    return f"a value of type {choices[0].__name__}{quotes}"
