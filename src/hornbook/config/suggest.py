"""Suggestions for unknown words: what other trainers call the same thing, or the most similar word.

did_you_mean("lerning_rate", ["learning_rate", "beta1"]) -> '; did you mean "learning_rate"?'
did_you_mean("--grad-clip", ["--optimizer.clip-norm"])    -> '; did you mean "--optimizer.clip-norm"?'
did_you_mean("gpu", ["auto", "cpu", "cuda", "mps"])       -> '; did you mean "cuda"?'
did_you_mean_path(Path("runs/mien"))                      -> '; did you mean "runs/mine"?'
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hornbook.config.options import TAGS, describe
from hornbook.config.recipe import SECTIONS, Key, Recipe, dotted, specs

_USUAL = {
    "learning_rate": "lr max_lr peak_lr peak_learning_rate base_learning_rate",
    "weight_decay": "wd l2 weight_decay_rate",
    "epsilon": "eps adam_eps adam_epsilon",
    "beta1": "betas b1 adam_beta1 adam_betas",
    "beta2": "b2 adam_beta2",
    "clip_norm": "clip grad_clip gradient_clip gradient_clipping max_grad_norm grad_norm_clip clip_grad clip_grad_norm",
    "warmup_steps": "warmup warmup_iters num_warmup_steps lr_warmup lr_warmup_steps warmup_updates",
    "warmup_fraction": "warmup_ratio warmup_proportion lr_warmup_fraction",
    "decay_end": "lr_decay_steps lr_decay_iters",
    "max_samples": "max_train_samples n_samples",
    "early_stopping_patience": "patience",
    "early_stopping_min_delta": "min_delta early_stopping_threshold",
    "final_fraction": "min_lr min_lr_ratio final_lr end_lr min_learning_rate",
    "steps": "max_steps num_steps train_steps max_iters num_train_steps iterations total_steps train_iters",
    "epochs": "nepochs num_epochs max_epochs num_train_epochs n_epochs",
    "tokens": "max_tokens num_tokens train_tokens",
    "global_batch_size": "batch_size bs train_batch_size batch gbs",
    "micro_batch_size": "mbs device_batch_size per_device_train_batch_size per_device_batch_size",
    "seed": "random_seed",
    "compute": "dtype precision fp16 bf16 mixed_precision amp",
    "num_layers": "n_layer n_layers layers num_hidden_layers depth encoder_layers",
    "num_heads": "n_head n_heads heads num_attention_heads attention_heads",
    "hidden_size": "n_embd n_embed d_model hidden_dim hidden embed_dim model_dim dim width",
    "head_size": "d_head head_dim qkv_length",
    "feed_forward_size": "d_ff ff_dim ffn_dim n_inner ffn_size intermediate_size mlp_dim ff_length",
    "vocab_size": "n_vocab vocabulary_size source_vocab_length",
    "max_positions": "n_positions max_position_embeddings n_ctx ctx_len block_size context_length max_seq_len",
    "sequence_length": "seq_len seq_length ctx_len block_size context_length max_seq_len max_seq_length max_length",
    "activation": "hidden_act act activation_function",
    "residual_dropout": "dropout resid_pdrop hidden_dropout_prob",
    "attention_dropout": "attn_pdrop attention_probs_dropout_prob attn_dropout",
    "embedding_dropout": "embd_pdrop",
    "initializer_std": "initializer_range init_std",
    "layer_norm_epsilon": "layer_norm_eps ln_eps",
    "every_steps": "eval_interval eval_every save_every save_steps eval_steps save_interval",
    "keep_last": "save_total_limit max_to_keep",
    "num_kv_heads": "n_kv_heads n_kv_head kv_heads num_key_value_heads num_query_groups",
    "query_key_norm": "qk_norm qk_layernorm use_qk_norm",
    "rope_theta": "rope_base rotary_base theta",
    "rope_share": "partial_rotary_factor rotary_pct rotary_percent",
    "norm_epsilon": "rms_norm_eps rms_eps norm_eps",
    "window": "sliding_window window_size attention_window",
    "logit_cap": "logit_softcap softcap final_logit_softcapping",
    "attention_cap": "attn_softcap attn_logit_softcapping",
    "tied": "tie_embeddings tie_word_embeddings tie_weights weight_tying",
    "z_loss": "z_loss_weight z_loss_coeff",
    "output_length": "max_tokens max_new_tokens new_tokens num_tokens n_predict max_length",
    "log_every_steps": "log_interval log_every logging_steps",
}
"""Names in other trainers by hornbook's name; some, such as ``block_size``, correspond to two options."""

_USUAL_WORDS = {
    "cuda": "gpu nvidia",
    "bf16": "bfloat16",
    "fp16": "float16 half",
    "fp32": "float32 float full",
    "gpt": "gpt2 gpt-2",
    "decoder": "llama qwen qwen3 olmo2 gemma smollm nanochat",
    "evaluation": "validation eval",
    "tracking": "logging log logger",
    "training": "train trainer",
    "optimizer": "optim",
    "schedule": "scheduler lr_scheduler",
    "data": "dataset",
    "time": "duration hours minutes time_limit max_time",
}
"""The same for values and sections."""


def usual(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that other trainers call ``word``, or None.

    Of ``section.key``, the key is compared, and known words of the most similar section are preferred. Upper case,
    leading dashes and dashes in place of underscores make no difference.
    """
    section, _, key = _plain(word).rpartition(".")
    ours = [name for name, words in (_USUAL | _USUAL_WORDS).items() if key in words.split()]
    known = list(known)
    sections = {name: name for name in (_plain(word).rpartition(".")[0] for word in known) if name}
    other = next((name for name, words in _USUAL_WORDS.items() if section in words.split()), None)
    section = section if section in sections else other or _closest(section, sections) or section
    meant = [name for name in known if _plain(name).rpartition(".")[2] in (key, *ours)]
    return min(meant, key=lambda name: not _plain(name).startswith(f"{section}."), default=None)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that other trainers call ``word``, or the most similar one, or None.

    Of names with a section, the whole is compared before the key alone.
    """
    known = {_plain(name): name for name in known}
    keys = {name.rpartition(".")[2]: full for name, full in reversed(known.items())}
    found = usual(word, known.values()) or _closest(_plain(word), known)
    return found or _closest(_plain(word).rpartition(".")[2], keys, cutoff=0.81)  # or "time" would be "model.tied"


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("-", "_")


def _closest(word: str, known: Mapping[str, str], cutoff: float = 0.6) -> str | None:
    """Return the value whose key is most similar to ``word``, or None below the cutoff, a share of equal letters."""
    from difflib import get_close_matches  # takes 4 ms, needed only for errors

    matches = get_close_matches(word, known, n=1, cutoff=cutoff)
    return known[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a suggestion, or nothing."""
    suggestion = nearest(word, known)
    return f'; did you mean "{suggestion}"?' if suggestion else ""


def did_you_mean_path(path: Path) -> str:
    """Return the end of an error message about a path: a similar one that exists, or nothing, also if it does itself.

    The first missing part of the path is replaced by the most similar name in the same folder.
    """
    with suppress(OSError):  # no suggestion for unreadable folders
        missing = next((part for part in reversed([path, *path.parents]) if not part.exists()), None)
        if missing is None:
            return ""
        name = _closest(missing.name, {entry.name: entry.name for entry in missing.parent.iterdir()})
        if name is not None:
            near = missing.with_name(name)
            whole = near / path.relative_to(missing)
            return f'; did you mean "{whole if whole.exists() else near}"?'
    return ""


def why_unknown(key: Key, options: Collection[str], chosen: object = None) -> str:
    """Return why a section has no such key: it applies to other choices, or is unknown, with a suggestion.

    Suggestions are the option that other trainers call so, a similar key of the section, or the key in other sections.

    Args:
        key: section and name.
        options: the section's options by name.
        chosen: the value of the section's tag; None for its default.
    """
    section, name = key
    if tags := [f'"{tag}"' for tag, _ in specs(section).get(name, ()) if tag] if section in SECTIONS else []:
        tag = (section, TAGS[section])
        chosen = chosen or describe(SECTIONS[section])[TAGS[section]].default
        listed = f"{', '.join(tags[:-1])} or {tags[-1]}" if len(tags) > 1 else tags[0]
        return f'applies only to {dotted(tag)} = {listed}, not "{chosen}"; remove it or change {dotted(tag)}'
    everywhere = [*describe(Recipe), *(f"{section}.{name}" for section in SECTIONS for name in specs(section))]
    near = nearest(name, options)
    meant = usual(dotted(key), everywhere) or (near and dotted((section, near))) or nearest(dotted(key), everywhere)
    return f'unknown key; did you mean "{meant}"?' if meant else "unknown key"
