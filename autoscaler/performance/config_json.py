"""Read any config.json into an architecture, or refuse the file with a reason.

`performance.architecture` checks the keys that it reads. The rest of a file may contain anything,
so every other failure becomes an InvalidValue too.
"""

from __future__ import annotations

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_json

_FAULTS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
_ALLOWED = "a Hugging Face config.json whose keys hold what such files hold"
_MAX_CHARS = 200


def architecture_of(name: str, text: str, field: str = "config") -> ModelSpec:
    """The architecture that `text` describes. Raises InvalidValue, which names the key or, if it is
    unknown, the failure."""
    try:
        return from_json(name, text, field)
    except InvalidValue:
        raise
    except KeyError as error:
        key = str(error.args[0] if error.args else error)[:_MAX_CHARS]
        raise InvalidValue(f"{field}: {key}", "missing", _ALLOWED) from error
    except _FAULTS as error:
        why = " ".join(str(error).split())[:_MAX_CHARS] or type(error).__name__
        raise InvalidValue(field, why, _ALLOWED) from error
