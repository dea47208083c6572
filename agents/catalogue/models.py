"""The catalogue: the available models, their data (Table 11, App. B.2), and their verifiers."""

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from agents.catalogue.endpoints import Endpoint, Positive
from schemas.chat import WHOLE, Capability, Requirement
from schemas.decision import Verified
from schemas.errors import InvalidField, UniscaleError
from schemas.grader import Grader, NamedGrader, grader_of
from schemas.objective import CostRange, CostUnit
from schemas.prices import Prices, Rate

# Errors of a catalogue, an objective or an action.
#
# UniscaleError
# ├── CatalogueError      a catalogue file, family or change that is invalid
# ├── ObjectiveError      an objective that is unknown, or cannot be removed
# └── ActionError         a configuration outside the rules or outside the space


class CatalogueError(UniscaleError):
    """A catalogue is invalid. The message names file, model, field and fix."""


class ObjectiveError(UniscaleError):
    """An objective does not exist, or cannot be changed or removed as requested."""


class ActionError(UniscaleError):
    """A configuration violates the rules of Table 1, or is not in the given action space."""


# The data of a model: architecture (Table 11), anchors (App. B.2), sampling and endpoint.
#
# All structs here are frozen and reject unknown fields; `file.py` reads them from files. `Architecture` has every
# number that the cost of a search depends on (App. D.3).

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
Label = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.'+-]+$", max_length=60)]
LabelOrNone = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.'+-]*$", max_length=60)]
Dtype = Literal["float32", "bfloat16", "float16"]

# Costs are eFLOPs times a price factor. Within these bounds, the logarithm of a cost stays in a range that the
# regression can handle.
PRICE_FACTORS = (1e-12, 1e12)

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

NO_VERIFIER = "none"
"""The value of `verifier` that stands for no verifier."""


class Architecture(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of Table 11, named as in Assumption D.5."""

    parameters: Positive  # P, as a count, not in billions
    layers: Positive
    query_heads: Positive
    kv_heads: Positive
    head_dim: Positive
    # prec_p, bytes per parameter; 0.5 for 4-bit weights
    weight_bytes: Positive | Annotated[float, Meta(gt=0)] = 2
    kv_bytes: Positive = 2  # prec_kv, bytes per cached number
    # for a mixture of experts, the parameters used per token; its cost is that of a dense model of this size
    active_parameters: Positive | msgspec.UnsetType = msgspec.UNSET

    @property
    def used_parameters(self) -> int:
        """Return P for the cost formulas: the number of parameters used per token."""
        active = self.active_parameters
        return self.parameters if isinstance(active, msgspec.UnsetType) else active

    def __post_init__(self) -> None:
        """Reject too many active parameters, and head counts that grouped-query attention does not allow."""
        if self.used_parameters > self.parameters:
            raise ValueError(
                f"active_parameters ({self.used_parameters}) is more than parameters ({self.parameters}), "
                "which counts all of them"
            )
        if self.query_heads % self.kv_heads:
            raise ValueError(
                f"query_heads ({self.query_heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )


class BenchmarkScore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's score on one benchmark. The label is the benchmark's task domain, as in the model's description."""

    label: Label
    score: Annotated[float, Meta(ge=0, le=100)]  # percent
    source: Annotated[str, Meta(min_length=1)]


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters. The paper does not state them, so they are recorded with every result."""

    temperature: Annotated[float, Meta(ge=0, le=2)]
    step_tokens: Positive  # maximum new tokens per draft
    depth_limit: Positive  # initial H_max, in steps
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0  # 0 for no limit
    delimiter: Annotated[str, Meta(min_length=1)] = "\n\n"  # ends a step and stays in its text
    thinking: bool = False  # the paper's anchors for Qwen3-14B are those of its non-thinking mode


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How vLLM hosts a model."""

    dtype: Dtype = "bfloat16"
    context_tokens: Positive = 32_768
    max_sequences: Positive = 64  # the widest step has 64 drafts
    tensor_parallel: Positive = 1
    kv_cache_bytes: Positive | None = None  # None leaves it to vLLM
    block_tokens: Positive | None = None  # None leaves it to vLLM


class ModelPrice(Prices, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices in a model's entry: `schemas.prices.Prices`, but with unknown fields rejected.

    Attributes:
        source: Source and date of the prices if the entry says `auto`; empty otherwise.
    """

    source: str = ""

    @property
    def plain(self) -> Prices:
        """Return the prices in the form used in records."""
        return Prices(input=self.input, output=self.output, cached_input=self.cached_input)


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate model: a generator with everything needed to choose it, run it and compute its cost."""

    name: Name
    # Hugging Face id, or a folder relative to the repository root; a chat endpoint needs none
    checkpoint: str = ""
    architecture: Architecture | None = None  # determines eFLOPs and, for a model in this process, memory
    sampling: Sampling
    params: LabelOrNone = ""  # size in its description; empty to derive it from the parameter count
    group: Name = "default"  # the executor group that hosts the model
    endpoint: Endpoint = Endpoint()
    engine: EngineSettings = EngineSettings()
    anchors: tuple[BenchmarkScore, ...] = ()
    price_factor: float = 1.0  # price of an eFLOP: a query's cost is its eFLOPs times this factor
    price: ModelPrice | None = None  # token prices, if costs are in USD
    grader: NamedGrader | None = None  # default grader of its answers; None for the catalogue's
    verifier: Name | None = None  # verifier of its drafts, or `none`; None for the default verifier
    effort: str = ""  # the `reasoning_effort` of requests that it serves; empty for any
    capabilities: tuple[Capability, ...] = ()  # what its server supports besides text

    def __post_init__(self) -> None:
        """Reject price factors out of range, unknown graders, duplicate anchors, and fields for other endpoints."""
        check_price_factor(self.price_factor)
        grader_of(self.grader)
        if self.endpoint.kind != "chat" and not self.checkpoint:
            raise InvalidField("Model", "checkpoint", "is missing; give it")
        if self.endpoint.kind == "in-process" and self.architecture is None:
            raise InvalidField(
                "Model", "architecture", "is missing: the memory of an in-process model is calculated from it"
            )
        if self.endpoint.kind == "chat" and self.sampling != self._whole_answer:
            raise InvalidField(
                "Model",
                "sampling",
                "is for models with steps: put temperature and the like under endpoint.extra_body, and the longest "
                "answer under endpoint.max_output_tokens",
            )
        if self.endpoint.kind != "chat" and self.capabilities:
            why = "is for endpoint.kind chat, which passes requests through: give the server an entry of that kind too"
            raise InvalidField("Model", "capabilities", why)
        labels = [anchor.label for anchor in self.anchors]
        if twice := first_repeated(labels):
            raise ValueError(f"anchors holds {twice!r} twice: keep one")

    @property
    def parameters(self) -> int:
        """Return the number of parameters; 0 if it is unknown."""
        return self.architecture.parameters if self.architecture is not None else 0

    def honours(self, required: Collection[Requirement]) -> bool:
        """Return whether the model meets a request's requirements."""
        chats, sampled = self.endpoint.kind == "chat", self.endpoint.sampling
        lacking = {
            *WHOLE.difference(self.capabilities),
            *(() if sampled else ("sampling",)),
            *(() if chats and sampled else ("penalties",)),
        }
        return lacking.isdisjoint(required)

    @property
    def base(self) -> str:
        """Return the name that the efforts of one entry share (NAME of NAME.EFFORT); empty if this is no effort."""
        base = self.name.removesuffix(f".{self.effort}")
        return base if self.effort and base != self.name else ""

    @property
    def rate(self) -> Rate:
        """Return what the model charges: its token prices, or its price factor."""
        return self.price_factor if self.price is None else self.price.plain

    @property
    def _whole_answer(self) -> Sampling:
        return Sampling(temperature=1.0, step_tokens=self.endpoint.max_output_tokens, depth_limit=1)


class StepTags(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input format of a process reward model that classifies step tags (`Qwen2ForProcessRewardModel`)."""

    tag: Annotated[str, Meta(min_length=1)]
    tag_id: Annotated[int, Meta(ge=0)]
    good_label: Annotated[int, Meta(ge=0)] = 1


class VerifierModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process reward model, which scores drafts. Its architecture determines the cost of verification."""

    name: Name
    checkpoint: Annotated[str, Meta(min_length=1)]
    architecture: Architecture | None = None
    family: Literal["skywork", "step-tags"]  # a value head and a sigmoid, or two labels per step tag
    step_tags: StepTags | None = None
    endpoint: Endpoint = Endpoint()
    engine: EngineSettings = EngineSettings(context_tokens=4_096)

    def __post_init__(self) -> None:
        """Reject a chat endpoint, a missing architecture, and step tags that do not fit the family."""
        if self.endpoint.kind == "chat":
            raise InvalidField(
                "VerifierModel",
                "endpoint.kind",
                "is chat, but a verifier must return scores; use in-process or http",
            )
        if self.endpoint.kind == "in-process" and self.architecture is None:
            why = "is missing: the memory of an in-process model is calculated from it"
            raise InvalidField("VerifierModel", "architecture", why)
        if (self.family == "step-tags") != (self.step_tags is not None):
            raise ValueError(
                f"step_tags of verifier {self.name!r} must be given when family is step-tags, and only then"
            )


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hardware for which costs are computed."""

    name: Annotated[str, Meta(min_length=1)]
    intensity: Annotated[float, Meta(gt=0)]  # I: peak FLOP/s over memory bytes/s, in FLOPs per byte

    def __post_init__(self) -> None:
        """Reject an intensity that is not finite."""
        if not math.isfinite(self.intensity):
            raise ValueError(f"intensity is {self.intensity}: give FLOPs per byte, 156 for an A800")


def check_price_factor(factor: float) -> None:
    """Reject an invalid price factor.

    Raises:
        ValueError: The factor is not a number within PRICE_FACTORS.
    """
    low, high = PRICE_FACTORS
    if not low <= factor <= high:  # NaN fails every comparison
        raise ValueError(
            f"price_factor is {factor}: give a finite number above 0, from {low:g} to {high:g}; 1 charges the eFLOPs"
        )


def size_label(parameters: int) -> str:
    """Return a parameter count in the form used in descriptions, to three significant digits.

    >>> [size_label(n) for n in (41_216, 999_600, 2_031_000, 14_770_000_000)]
    ['41.2K', '1M', '2.03M', '14.8B']
    """
    rounded = float(f"{parameters:.3g}")
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if rounded >= unit:
            return f"{rounded / unit:.3g}{letter}"
    return str(parameters)


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that repeats an earlier one; None if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


# The catalogue: the available models, the verifier of each, and the hardware's FLOPs per byte.
#
# `file.py` reads a file under `infra/catalogue/` into one frozen `Catalogue`. Adding or removing a model gives a new
# catalogue with a higher version, and each decision records the version that it used.


class Catalogue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The available models, in the stable order in which actions are enumerated."""

    name: Name
    hardware: Hardware | None = None  # needed for eFLOPs
    verifier: Name  # default verifier of the models: one of `verifiers`, or `none`
    cost_range: CostRange  # normalises log C until a control record replaces it
    models: tuple[Model, ...]
    verifiers: tuple[VerifierModel, ...]
    version: Annotated[
        int, Meta(ge=-1)
    ] = -1  # offset in `control` of the last change; −1 for the file's content
    grader: NamedGrader | None = None  # used if neither query nor model names one; None for `boxed-only`

    def __post_init__(self) -> None:
        """Reject empty catalogues, duplicate names, unknown graders or verifiers, and costs that cannot be computed."""
        grader_of(self.grader)
        if not self.models:
            raise ValueError("models is empty: a catalogue holds at least one")
        if twice := first_repeated(self._names):
            raise ValueError(f"name {twice!r} is used twice: rename one")
        if why := (self._unpriced if self.unit == "usd" else self._uncounted):
            raise ValueError(why)
        known = [each.name for each in self.verifiers]
        if NO_VERIFIER in known:
            raise ValueError(f"a verifier is named {NO_VERIFIER!r}, which means no verifier: rename it")
        for whose, name in (("", self.verifier), *((f"model {m.name!r}: ", m.verifier) for m in self.models)):
            if name not in (*known, NO_VERIFIER, None):
                raise ValueError(
                    f"{whose}verifier is {name!r}, verifiers holds {', '.join(known) or 'none'}: "
                    f"name one of them, or write {NO_VERIFIER}"
                )

    @property
    def unit(self) -> CostUnit:
        """Return the unit of all costs."""
        return self.cost_range.unit

    @property
    def _unpriced(self) -> str:
        """Return why costs in USD cannot be computed; empty if they can."""
        for each in self.models:
            if each.price is None:
                return (
                    f"model {each.name!r}, field price: is missing, but costs are in usd: give USD per million tokens, "
                    "such as {input: 0.15, output: 0.6}, or leave out every price and count in eflops"
                )
            if each.price_factor != 1.0:
                return f"model {each.name!r}, field price_factor: is for eflops, but costs are in usd: leave it out"
        return ""

    @property
    def _uncounted(self) -> str:
        """Return why costs in eFLOPs cannot be computed; empty if they can."""
        for each in self.models:
            if each.price is not None:
                return (
                    f"model {each.name!r}, field price: is in usd, but costs are in eflops: leave it out, or give "
                    "every model a price and count in usd (cost_range: {unit: usd})"
                )
            if each.architecture is None:
                return (
                    f"model {each.name!r}, field architecture: is missing, but costs are in eflops, which follow from "
                    "it: give that of the model, or of one of its size, or give every model a price and count in usd"
                )
        if self.hardware is None:
            return "hardware is missing, but costs are in eflops: give name and intensity, or give every model a price"
        bare = [each.name for each in self.verifiers if each.architecture is None]
        if bare:
            return f"verifier {bare[0]!r}, field architecture: is missing, but costs are in eflops: give it"
        return ""

    @property
    def _names(self) -> tuple[str, ...]:
        return (*(each.name for each in self.models), *(each.name for each in self.verifiers))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of the candidate models, in catalogue order."""
        return tuple(each.name for each in self.models)

    def lacking(
        self, required: Sequence[Requirement], models: Collection[str] | None = None
    ) -> Requirement | None:
        """Return the first requirement that no allowed model meets in addition to the earlier ones.

        Return None if some allowed model meets all requirements, or if the catalogue contains no allowed model.

        Args:
            required: The query's requirements.
            models: Names of the models that the query allows; None for all.
        """
        able = [each for each in self.models if models is None or each.name in models]
        for at, requirement in enumerate(required, 1):
            if able and not any(each.honours(required[:at]) for each in able):
                return requirement
        return None

    @property
    def efforts(self) -> tuple[str, ...]:
        """Return the distinct reasoning efforts of the models, in catalogue order."""
        return tuple(dict.fromkeys(each.effort for each in self.models if each.effort))

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the model names of each executor group."""
        names = dict.fromkeys(each.group for each in self.models)
        return {group: tuple(m.name for m in self.models if m.group == group) for group in names}

    @property
    def key_names(self) -> tuple[str, ...]:
        """Return the names of the environment variables that hold the models' API keys."""
        return tuple(dict.fromkeys(each.endpoint.key_env for each in self.models if each.endpoint.key_env))

    @property
    def price_factors(self) -> dict[str, Rate]:
        """Return the price factors other than 1, by model; if costs are in USD, the token prices of every model."""
        return {m.name: m.rate for m in self.models if m.rate != 1.0}

    @property
    def smallest(self) -> Model:
        """Return the model with the fewest parameters, which the TTS scenario scales."""
        return min(self.models, key=lambda each: each.parameters or math.inf)

    @property
    def fingerprint(self) -> str:
        """Return a digest of everything that can affect a recorded search.

        The version, prices, graders and capabilities cannot, and are left out.
        """
        plain = msgspec.to_builtins(msgspec.structs.replace(self, version=-1))
        for model in plain["models"]:
            del model["price_factor"], model["price"], model["grader"]
            del model["capabilities"], model["endpoint"]["sampling"]
            if model["verifier"] is None:  # keeps the digest of recordings made before this field existed
                del model["verifier"]
            if not model["effort"]:
                del model["effort"]
        del plain["grader"]
        for each in (*plain["models"], *plain["verifiers"]):
            if not each["endpoint"]["urls"]:
                del each["endpoint"]["urls"]
            if (endpoint := each["endpoint"])["kind"] != "chat":  # likewise for the fields of chat endpoints
                own = ("kind", "url", "urls", "served_name")
                each["endpoint"] = {name: endpoint[name] for name in own if name in endpoint}
        content = msgspec.json.encode(plain, order="sorted")
        return hashlib.sha256(content).hexdigest()[:16]

    @property
    def cost_basis(self) -> dict[str, float | str]:
        """Return everything that determines the eFLOPs of a search (App. D.3): hardware, verifiers in use and models.

        Two catalogues with the same basis assign the same eFLOPs to the same trace of a model. If costs are in USD,
        they depend only on tokens and prices, and the basis is just the unit.
        """
        if self.hardware is None or self.unit == "usd":
            return {"unit": self.unit}
        found: dict[str, float | str] = {
            "hardware.intensity": self.hardware.intensity,
            "verifier": self.verifier,
        }
        priced: dict[str, Architecture | None] = {}
        if self.verifier != NO_VERIFIER:
            priced["verifier"] = self.verifier_named().architecture
        for each in self.models:
            priced[f"models.{each.name}"] = each.architecture
            if each.verifier not in (None, self.verifier):
                found[f"models.{each.name}.verifier"] = str(each.verifier)
                if (other := self.verifier_of(each.name)) is not None:
                    priced[f"models.{each.name}.verifier"] = other.architecture
        for at, architecture in priced.items():
            found |= {f"{at}.{field}": value for field, value in msgspec.to_builtins(architecture).items()}
        return found

    @property
    def graders(self) -> dict[str, Grader]:
        """Return the graders named in the catalogue, keyed by where: `the catalogue`, or `model` and its name."""
        named = {"the catalogue": self.grader} | {f"model {each.name}": each.grader for each in self.models}
        return {where: grader for where, given in named.items() if (grader := grader_of(given)) is not None}

    def model(self, name: str) -> Model:
        """Return a candidate model.

        Raises:
            CatalogueError: The catalogue does not contain it.
        """
        for each in self.models:
            if each.name == name:
                return each
        known = ", ".join(self.model_names)
        raise CatalogueError(f"catalogue {self.name!r}: no model {name!r}; choose one of {known}, or add it")

    def verifier_named(self, name: str | None = None) -> VerifierModel:
        """Return a verifier, by default the catalogue's default verifier.

        Raises:
            CatalogueError: The catalogue does not contain it.
        """
        wanted = self.verifier if name is None else name
        for each in self.verifiers:
            if each.name == wanted:
                return each
        known = ", ".join(each.name for each in self.verifiers)
        raise CatalogueError(
            f"catalogue {self.name!r}: no verifier {wanted!r}; choose one of {known or 'none'}"
        )

    def verifier_of(self, model: str) -> VerifierModel | None:
        """Return the verifier of a model; None if it has none.

        Raises:
            CatalogueError: The catalogue does not contain the model.
        """
        entry = self.model(model)
        name = self.verifier if entry.verifier is None else entry.verifier
        return None if name == NO_VERIFIER else self.verifier_named(name)

    @property
    def scoring(self) -> tuple[VerifierModel, ...]:
        """Return the verifiers that at least one model uses, in catalogue order."""
        used = [self.verifier_of(name) for name in self.model_names]
        return tuple(each for each in self.verifiers if each in used)

    @property
    def verified(self) -> Verified:
        """Return `all` if all models, healthy or not, share one verifier, `none` if none has one, otherwise `some`."""
        used = {None if each is None else each.name for each in map(self.verifier_of, self.model_names)}
        if used == {None}:
            return "none"
        return "all" if len(used) == 1 else "some"

    def scored_by(self, verifier: str) -> "Catalogue":
        """Return the catalogue with a different default verifier, or with `none`. Models that name their own keep it.

        Raises:
            CatalogueError: The catalogue does not contain the verifier.
        """
        name = verifier if verifier == NO_VERIFIER else self.verifier_named(verifier).name
        return msgspec.structs.replace(self, verifier=name)

    @property
    def overlong(self) -> dict[str, int]:
        """Return the models whose longest paths exceed their verifier's context, each with the tokens of such a path.

        Of a path that is too long, the verifier reads only the last steps, as many as fit its context after the
        question.
        """
        found = {}
        for each in self.models:
            tokens = min(each.sampling.depth_limit * each.sampling.step_tokens, each.engine.context_tokens)
            verifier = self.verifier_of(each.name)
            if verifier is not None and tokens > verifier.engine.context_tokens:
                found[each.name] = tokens
        return found

    def add(self, model: Model, version: int | None = None) -> "Catalogue":
        """Return the catalogue with a model appended, so that no action changes its index.

        Args:
            model: The new model.
            version: The new version; in production, the offset of the change in `control`. Defaults to the next number.

        Raises:
            CatalogueError: The name is taken, or the version does not increase.
        """
        if model.name in self._names:
            raise CatalogueError(
                f"catalogue {self.name!r}: model {model.name!r} already exists; "
                "replace it, or take another name"
            )
        return self._changed((*self.models, model), version)

    def replace(self, model: Model, version: int | None = None) -> "Catalogue":
        """Return the catalogue with an existing model's entry replaced and moved to the end, as if it were new.

        Raises:
            CatalogueError: The model does not exist, or the version does not increase.
        """
        before = self.model(model.name)
        return self._changed((*(each for each in self.models if each is not before), model), version)

    def remove(self, name: str, version: int | None = None) -> "Catalogue":
        """Return the catalogue without one model.

        Raises:
            CatalogueError: The model does not exist or is the last one, or the version does not increase.
        """
        gone = self.model(name)
        if len(self.models) == 1:
            raise CatalogueError(
                f"catalogue {self.name!r}: {name!r} is the last model; add another one first"
            )
        return self._changed(tuple(each for each in self.models if each is not gone), version)

    def with_rate(self, name: str, rate: Rate, version: int | None = None) -> "Catalogue":
        """Return the catalogue with a model's price factor or token prices changed. The model keeps its position.

        Raises:
            CatalogueError: The model does not exist, the rate is out of range or in the wrong unit, or the version does
                not increase.
        """
        before = self.model(name)
        try:
            if isinstance(rate, Prices):
                price = ModelPrice(**msgspec.structs.asdict(rate))
                after = msgspec.structs.replace(before, price=price)
            else:
                if self.unit == "usd":
                    raise ValueError("costs are in usd: give --input and --output, in USD per million tokens")
                after = msgspec.structs.replace(before, price_factor=float(rate))
        except ValueError as error:
            raise CatalogueError(f"catalogue {self.name!r}, model {name!r}: {error}") from None
        return self._changed(tuple(after if each is before else each for each in self.models), version)

    def unchanged(self, version: int) -> "Catalogue":
        """Return the catalogue with the same models and a later version.

        Raises:
            CatalogueError: The version does not increase.
        """
        return self._changed(self.models, version)

    def _changed(self, models: tuple[Model, ...], version: int | None) -> "Catalogue":
        after = self.version + 1 if version is None else version
        if after <= self.version:
            raise CatalogueError(
                f"catalogue {self.name!r}: version {after} does not follow {self.version}; give a higher one"
            )
        try:
            return msgspec.structs.replace(self, models=models, version=after)
        except ValueError as error:
            raise CatalogueError(f"catalogue {self.name!r}: {error}") from None
