"""What can be wrong with a catalogue, an objective or an action.

UniscaleError
├── CatalogueError      a catalogue file, family or change that cannot be used
├── ObjectiveError      an objective that is unknown, or that cannot go
└── ActionError         a configuration outside the rules or outside the space
"""

from schemas.errors import UniscaleError


class CatalogueError(UniscaleError):
    """A catalogue cannot be used as it stands. The message names file, model, field and fix."""


class ObjectiveError(UniscaleError):
    """An objective that a query names is not there, or cannot be changed so."""


class ActionError(UniscaleError):
    """A configuration breaks Table 1's rules, or is not in the space it was looked up in."""
