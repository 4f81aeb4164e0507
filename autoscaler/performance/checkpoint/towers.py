"""Image and audio encoders of a multimodal model. Their weights keep the model's own dtype."""

from __future__ import annotations

from autoscaler.performance.checkpoint.class_defaults import defaults_of
from autoscaler.performance.checkpoint.keys import Keys

_SECTIONS = ("vision_config", "audio_config", "vision_encoder", "audio_encoder")
_GATED = ("silu", "swish")
_MOST_LAYERS = 1000


def tower_params(keys: Keys) -> float:
    """Number of weights of all encoders whose layers and widths the configuration states."""
    return sum(_encoder(section) for name in _SECTIONS if (section := _section(keys, name)))


def _section(keys: Keys, name: str) -> Keys | None:
    if not isinstance(keys.value(name), dict):
        return None
    section = keys.section(name)
    if section is None:
        return None
    kind = section.config.get("model_type")
    defaults = defaults_of(kind) if isinstance(kind, str) else {}
    return Keys(section.config, section.field, defaults)


def _encoder(keys: Keys) -> float:
    """Number of weights: attention has four matrices, an MLP has two, or three if it is gated."""
    layers = keys.number("depth", "num_hidden_layers", "vt_num_hidden_layers", "encoder_layers",
                         "num_layers", high=_MOST_LAYERS)  # fmt: skip
    width = keys.number("embed_dim", "vt_hidden_size", "d_model", "hidden_size")
    if not layers or not width:
        return 0.0
    inner = keys.number("intermediate_size", "vt_intermediate_size", "encoder_ffn_dim")
    inner = inner or int(keys.real("mlp_ratio", 4.0, 0.0, 100.0) * width)
    activation = keys.value("hidden_act", "hidden_activation")
    matrices = 3 if activation in _GATED else 2
    return layers * (4.0 * width * width + float(matrices) * width * inner)
