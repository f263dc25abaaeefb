"""Translate the options of rotary positions between transformers and hornbook.

::

    rope_theta, rope_scaling {rope_type, factor, …}, rope_local_base_freq       transformers 4, and what is written
    rope_parameters {rope_theta, rope_type, factor, …}                          transformers 5
    rope_parameters {full_attention: {…}, sliding_attention: {…}}               transformers 5, Gemma 3 and ModernBERT

Both versions read what is written.
"""

from collections.abc import Mapping
from typing import Any, Final

from hornbook.config import DecoderConfig

ROTARY: Final = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "partial_rotary_factor")
"""Names in ``config.json``."""
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_NUMBERS: Final = {
    "factor": "rope_factor",
    "original_max_position_embeddings": "rope_original_positions",
    "low_freq_factor": "rope_low_factor",
    "high_freq_factor": "rope_high_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "attention_factor": "rope_attention_factor",
}
_USED: Final = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}
"""The numbers of each type that transformers reads."""


def rotary_options(
    config: Mapping[str, Any], max_positions: object, defaults: Mapping[str, object]
) -> tuple[dict[str, Any], list[str]]:
    """Return the options of ``[model]`` about rotary positions, unchecked, and the problems of a ``config.json``.

    Args:
        config: the content of ``config.json``.
        max_positions: the model's, the default of ``original_max_position_embeddings``.
        defaults: of ``rope_theta`` and, for models with local layers, of ``rope_local_base_freq``.
    """
    given = config.get("rope_parameters") or {}
    problems = [
        f"{name} is {config[name]!r:.80}, expected a table"
        for name in ("rope_parameters", "rope_scaling")
        if not isinstance(config.get(name) or {}, Mapping)
    ]
    if problems:
        return {}, problems
    is_nested = any(isinstance(value, Mapping) for value in given.values())
    full = dict(given.get(_FULL) or {}) if is_nested else dict(given)
    full = {**(config.get("rope_scaling") or {}), **full}
    full.setdefault("rope_theta", config.get("rope_theta") or defaults.get("rope_theta", 10_000.0))
    options, problems = _scaling(full, max_positions)
    if config.get("partial_rotary_factor") not in (None, 1.0):
        problems.append(f"partial_rotary_factor is {config['partial_rotary_factor']!r:.80}, expected 1.0")
    if is_nested or "rope_local_base_freq" in defaults:
        local = dict(given.get(_SLIDING) or {}) if is_nested else {}
        freq = config.get("rope_local_base_freq") or defaults.get("rope_local_base_freq", 10_000.0)
        local.setdefault("rope_theta", freq)
        scaling, faults = _scaling(local, max_positions)
        options["local_rope_theta"] = scaling["rope_theta"]
        problems += faults
        if scaling.get("rope_scaling", "none") != "none":
            problems.append(f"rope_type of {_SLIDING} is {local.get('rope_type')!r:.80}, expected 'default'")
    return options, problems


def _scaling(given: Mapping[str, Any], max_positions: object) -> tuple[dict[str, Any], list[str]]:
    """Return the options of one kind of layers."""
    kind = given.get("rope_type") or given.get("type") or "default"
    if not isinstance(kind, str) or kind not in _USED:
        return {"rope_theta": 10_000.0}, [f"rope_type is {kind!r:.80}, expected one of {', '.join(_USED)}"]
    known = {"rope_theta", "rope_type", "type", *_NUMBERS}
    problems = [f"{name!r:.80} of the rotary positions is not known" for name in given if name not in known]
    options = {_NUMBERS[name]: given[name] for name in _USED[kind] if given.get(name) is not None}
    if kind in ("llama3", "yarn"):
        options.setdefault("rope_original_positions", max_positions)
    return {
        "rope_theta": given["rope_theta"],
        "rope_scaling": "none" if kind == "default" else kind,
        **options,
    }, problems


def their_rotary_options(config: DecoderConfig) -> dict[str, Any]:
    """Return the options of ``config.json``, in the form that transformers 4 and 5 read."""
    options: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.local_rope_theta is not None:
        options["rope_local_base_freq"] = config.local_rope_theta
    if config.rope_scaling != "none":
        numbers = {name: getattr(config, _NUMBERS[name]) for name in _USED[config.rope_scaling]}
        there = {name: number for name, number in numbers.items() if number is not None}
        options["rope_scaling"] = {"rope_type": config.rope_scaling, **there}
    return options
