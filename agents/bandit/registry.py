"""The registry of policies, keyed by name. Each policy's module registers the policy and its options.

    @register_policy("knn", KNNOptions)
    def _knn(options: KNNOptions, on: Inputs) -> Policy:
        return KNN(on.features(options), options.k)

The service and `experiments` build policies by these names, settings are validated against these options, and a test
compares them with the table in the documentation. A new policy needs one file here, listed in `_import_all`, and one
row in docs/policies.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from agents.bandit.errors import PolicyRefused
from agents.bandit.exploration import ControlGroup, Explored
from agents.bandit.features import FeatureMap, FeatureSettings
from agents.bandit.policy import Policy
from schemas.action import Action
from schemas.errors import InvalidField
from schemas.objective import CostUnit


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options common to all policies; each policy's own options extend them.

    Attributes:
        floor: ε of the recorded exploration floor.
        warm_up: Number of uniform rounds at the start; 50 in the paper's experiments.
        control_share: Share of queries that get `control_action`, regardless of the policy.
        control_action: The control group's action, `model/qp/cp/bs`. Unless a verifier scores all models, it is also
            the baseline, which all queries get until any answer's correctness is known.
        control_salt: Secret that determines control-group membership, so that nobody can pick an id to get in.
        action_features, interactions, query_rank, action_rank, interaction_scale, basis_seed: See FeatureSettings.
    """

    floor: float = 0.0
    warm_up: int = 0
    control_share: float = 0.0
    control_action: str = ""
    control_salt: str = ""
    action_features: Literal["raw", "centred", "one-hot"] = "raw"
    interactions: Literal["none", "bilinear", "model"] = "none"
    query_rank: int = 8
    action_rank: int = 6
    interaction_scale: float = 1.0
    basis_seed: int = 0

    def __post_init__(self) -> None:
        """Reject values that are invalid for every policy, naming the field."""
        self.positive("query_rank", "action_rank")
        self.not_negative("interaction_scale", "warm_up")
        self.share("floor", "control_share")
        if self.control_action:
            try:
                Action.parse(self.control_action)
            except InvalidField as error:
                raise ValueError(f"control_action {error.why}") from None
        elif self.control_share:
            raise ValueError(f"control_action is empty with control_share {self.control_share:g}; give it")

    def positive(self, *names: str) -> None:
        """Reject values that are not above zero."""
        for name in names:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a number above zero")

    def not_negative(self, *names: str) -> None:
        """Reject values below zero."""
        for name in names:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give zero or more")

    def share(self, *names: str) -> None:
        """Reject values outside 0 to 1."""
        for name in names:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a number between 0 and 1")


@dataclass(frozen=True)
class Inputs:
    """A policy factory's inputs besides the policy's options.

    Attributes:
        query_dim: Length of s_q.
        action_dim: Length of s_a; with one-hot features, the maximum number of actions that can ever be added.
        encoder: Identity of the encoder used for s_q and s_a; a prior from a different encoder is rejected.
        unit: Unit of costs. If it is USD, a policy that applies prices when it decides learns tokens instead of costs.
    """

    query_dim: int
    action_dim: int
    encoder: str = ""
    unit: CostUnit = "eflops"

    def features(self, options: Options) -> FeatureMap:
        """Return the feature map of the paper's joint vector, without actions."""
        settings = FeatureSettings(
            query_dim=self.query_dim,
            action_dim=self.action_dim,
            action_features=options.action_features,
            interactions=options.interactions,
            query_rank=options.query_rank,
            action_rank=options.action_rank,
            interaction_scale=options.interaction_scale,
            basis_seed=options.basis_seed,
        )
        return FeatureMap(settings)


O = TypeVar("O", bound=Options)
Make = Callable[[Any, Inputs], Policy]


@dataclass(frozen=True)
class Kind:
    """A registered policy: its name, option type and factory."""

    name: str
    options: type[Options]
    make: Make


_KINDS: Final[dict[str, Kind]] = {}


def register_policy(name: str, options: type[O]) -> Callable[[Callable[[O, Inputs], Policy]], Make]:
    """Register the decorated function as the factory of a policy."""

    def register(make: Callable[[O, Inputs], Policy]) -> Make:
        if name in _KINDS:
            raise ValueError(f"policy {name!r} is registered twice")
        _KINDS[name] = Kind(name, options, make)
        return make

    return register


def kinds() -> Mapping[str, Kind]:
    """Return all registered policies, keyed by name."""
    _import_all()
    return _KINDS


@cache
def _import_all() -> None:
    for name in ("linucb", "baselines", "contextual"):
        importlib.import_module(f"agents.bandit.{name}")


# Building a policy from its name and options, for both the service and `experiments`.
#
# The defaults are the paper's, except for `reward`: with one column of b per reward term, objectives can change without
# relearning.


def options_of(name: str, given: Mapping[str, Any] | None = None) -> Options:
    """Return a policy's options, with defaults for those not set.

    Args:
        name: The policy's name.
        given: Option values, keyed by name, as parsed from JSON.

    Raises:
        PolicyRefused: The policy or an option is unknown, or a value is out of range; the message names it.
    """
    known = kinds()
    if name not in known:
        raise PolicyRefused(f"policy: {name!r} is unknown; choose one of {', '.join(sorted(known))}")
    fields = known[name].options.__struct_fields__
    for field in given or {}:
        if field not in fields:
            raise PolicyRefused(
                f"policy_options: {field!r} is unknown to policy {name!r}; choose from {', '.join(fields)}"
            )
    try:
        return msgspec.convert(dict(given or {}), known[name].options)
    except (msgspec.ValidationError, ValueError) as error:
        raise PolicyRefused(f"policy_options: {error}") from None


def build_policy(
    name: str,
    given: Mapping[str, Any] | Options | None = None,
    *,
    query_dim: int,
    action_dim: int,
    encoder: str = "",
    unit: CostUnit = "eflops",
) -> Policy:
    """Return a policy without actions.

    Args:
        name: The policy's name.
        given: The policy's options.
        query_dim: Length of s_q.
        action_dim: Length of s_a; with one-hot features, the maximum number of actions that can ever be added.
        encoder: Identity of the encoder; a prior must come from the same one.
        unit: Unit of costs.

    Raises:
        PolicyRefused: The policy or an option is unknown, or a value is out of range; the message names it.
    """
    options = given if isinstance(given, Options) else options_of(name, given)
    try:
        made = kinds()[name].make(options, Inputs(query_dim, action_dim, encoder, unit))
    except ValueError as error:
        raise PolicyRefused(f"policy_options: {error}") from None
    except ModuleNotFoundError as error:
        raise PolicyRefused(
            f"policy: {name!r} needs the package {error.name}, which is not installed here"
        ) from None
    control = None
    if options.control_share:
        control = ControlGroup(options.control_share, options.control_action, options.control_salt)
    if options.floor or options.warm_up or control:
        return Explored(made, floor=options.floor, warm_up=options.warm_up, control=control)
    return made
