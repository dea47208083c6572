"""A policy from its name and options: the only factory, used by the service and by `experiments`.

The defaults are the paper's, except for `reward`: one column of b per reward term lets objectives change without
relearning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agents.decider.errors import PolicyRefused
from agents.decider.policies.exploration import ControlGroup, Explored
from agents.decider.policies.policy import Policy
from agents.decider.policies.registry import Inputs, Options, kinds
from agents.decider.vectors import QueryBasis


def options_of(name: str, given: Mapping[str, Any] | None = None) -> Options:
    """Return the options of a policy; options not given have their defaults.

    Args:
        name: The policy's name.
        given: Options by name, as parsed from JSON.

    Raises:
        PolicyRefused: There is no such policy or option, or a value is out of range; the message names it.
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
    query_basis: QueryBasis | None = None,
    encoder: str = "",
) -> Policy:
    """Return a policy with no action added yet.

    Args:
        name: The policy's name.
        given: Its options.
        query_dim: Length of s_q.
        action_dim: Length of s_a; with one-hot features, the most actions that can ever be added.
        query_basis: Projection of queries for interactions; the default is a random one.
        encoder: Identity of the encoder; a prior must come from the same one.

    Raises:
        PolicyRefused: There is no such policy or option, or a value is out of range; the message names it.
    """
    options = given if isinstance(given, Options) else options_of(name, given)
    try:
        made = kinds()[name].make(options, Inputs(query_dim, action_dim, query_basis, encoder))
    except ValueError as error:
        raise PolicyRefused(f"policy_options: {error}") from None
    control = None
    if options.control_share:
        control = ControlGroup(options.control_share, options.control_action, options.control_salt)
    if options.floor or options.warm_up or control:
        return Explored(made, floor=options.floor, warm_up=options.warm_up, control=control)
    return made
