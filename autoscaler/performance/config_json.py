"""A config.json of anyone's making, read into a model's architecture or refused with a reason.

Owns the last line of defence: `performance.architecture` knows what keys mean and refuses what it
sees is wrong; a file may hold anything else, and no file ends a process.
"""

from __future__ import annotations

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_json

_FAULTS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
_ALLOWED = "a Hugging Face config.json whose keys hold what such files hold"
_MOST = 200


def architecture_of(name: str, text: str, field: str = "config") -> ModelSpec:
    """The architecture that `text` describes. InvalidValue names the key, or where none is known
    what could not be done with the file."""
    try:
        return from_json(name, text, field)
    except InvalidValue:
        raise
    except KeyError as error:
        key = str(error.args[0] if error.args else error)[:_MOST]
        raise InvalidValue(f"{field}: {key}", "missing", _ALLOWED) from error
    except _FAULTS as error:
        why = " ".join(str(error).split())[:_MOST] or type(error).__name__
        raise InvalidValue(field, why, _ALLOWED) from error
