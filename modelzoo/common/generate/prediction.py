"""Predict mode of language models: completions of prompts.

Each completion is written to ``predict/<name>.partial.jsonl`` when it ends, so that a run that is
killed keeps those. At the end ``predict/<name>.jsonl`` replaces it, in the order of the prompts. If
each prompt has a reference, completions are scored by ROUGE.
"""

import json
from pathlib import Path

from cerebras_tf.api import counted, get_logger, progress_bar
from modelzoo.common.config.input_sections import GptPromptsInput
from modelzoo.common.data.prompts import REFERENCE, read_prompts, section_tokenizer
from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.generate.cached_decoder import CachedDecoder, decoder_signature
from modelzoo.common.generate.generate import Request, generate
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.metrics.rouge import mean_rouge
from modelzoo.common.train import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Completes the prompts of ``predict_input``. With another processor it writes every row."""
    section = params.predict_input
    if not isinstance(section, GptPromptsInput):
        predictions.predict(estimator, inputs, params, checkpoint_path, use_cs)
        return
    limit = max_length(params)
    tokenizer = section_tokenizer(section, params.train_input.vocab_size)
    prompts = select_prompts(params, tokenizer)
    requests = make_requests(prompts, section)
    warn_truncated(prompts, section.max_new_tokens, limit)
    if use_cs and params.runconfig.memoryx_dir:
        log_plan(estimator, params, section.batch_size, max_past_length(params, prompts))
    name = predictions.output_name("completions", estimator, use_cs)
    total = len(requests) * section.max_new_tokens
    with (
        open_decoder(estimator, params, checkpoint_path, use_cs) as decoder,
        progress_bar(total, "token") as bar,
    ):
        done = generate(decoder, requests, tokenizer, section.batch_size, limit, bar.update)
        rows = (as_row(request, *request.key) for request in done)
        path = write_completions(rows, predictions.predict_folder(params), name)
    get_logger().info("wrote %s to %s", counted(len(requests), "completion"), path)
    scored = all(REFERENCE in request.key[2].others for request in requests)
    folder = Path(params.runconfig.model_dir, "eval")
    predictions.keep_scores(folder, checkpoint_path, score(requests) if scored else {})


def select_prompts(params, tokenizer, limit=None):
    """Returns the prompts that `predict_input` selects, and logs which are not predicted.

    Args:
        limit: maximum number of tokens; None for `max_length`.
    """
    section, vocab_size = params.predict_input, params.train_input.vocab_size
    longest = max_length(params) if limit is None else limit
    prompts = read_prompts(section.prompt_file, tokenizer, vocab_size, longest)
    prompts = prompts[(section.skip_steps or 0) * section.batch_size :]
    predictions.require_rows(len(prompts), section)
    steps = params.runconfig.predict_steps
    if steps is not None and len(prompts) > steps * section.batch_size:
        prompts = prompts[: steps * section.batch_size]
        predictions.log_skipped_batches(steps)
    return prompts


def warn_truncated(prompts, max_new_tokens, limit):
    """Logs how many completions are shorter than `max_new_tokens` because of `limit`."""
    left = [limit - len(prompt.tokens) for prompt in prompts]
    short = [count for count in left if count < max_new_tokens]
    if short:
        least, most = min(short), max(short)
        get_logger().warning(
            "max_new_tokens is %d, but within %d tokens (max_sequence_length, or the model's "
            "positions) %d of %d prompts leave only %s for their completions, which end there with "
            "finish_reason length. Raise max_sequence_length if the model has more positions, or "
            "shorten the prompts.",
            max_new_tokens,
            limit,
            len(short),
            len(left),
            least if least == most else f"{least} to {most}",
        )


def max_past_length(params, prompts):
    """Returns the maximum number of tokens before the last token of a completion."""
    longest = max(len(prompt.tokens) for prompt in prompts)
    return min(longest + params.predict_input.max_new_tokens, max_length(params)) - 1


def compile_prediction(estimator, inputs, params, **options):
    """Compiles what `predict` runs. For prompts that is the step of a completion's last token."""
    import tensorflow.compat.v1 as tf

    section = params.predict_input
    if not isinstance(section, GptPromptsInput):
        estimator.compile(inputs.predict, mode=tf.estimator.ModeKeys.PREDICT, **options)
        return
    tokenizer = section_tokenizer(section, params.train_input.vocab_size)
    past_length = max_past_length(params, select_prompts(params, tokenizer))
    _compile_step(estimator, params, section.batch_size, past_length, options)


def log_plan(estimator, params, rows, past_length):
    """Logs what a decoding step reads from files, and how long that takes."""
    _compile_step(estimator, params, rows, past_length, {"validate_only": True})


def _compile_step(estimator, params, rows, past_length, options):
    import tensorflow.compat.v1 as tf

    shapes = _decoder(None, params).step_shapes(rows, past_length)

    def input_fn():
        def zeros(_):
            return {name: tf.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}

        return tf.data.Dataset.from_tensors(0).map(zeros)

    get_logger().info(
        "a step of %d rows with up to %d tokens before the new one:", rows, past_length
    )
    estimator.compile(input_fn, mode=tf.estimator.ModeKeys.PREDICT, **options)


def score(requests):
    """Logs and returns the ROUGE scores of completions whose prompts have a reference.

    Args:
        requests: list of Request that have ended. Each of several samples of a prompt counts.
    """
    pairs = [(request.text, request.key[2].others[REFERENCE]) for request in requests]
    scores = mean_rouge(*zip(*pairs))
    shown = ", ".join(f"{name} {value:.2f}" for name, value in scores.items() if "f1" in name)
    get_logger().info("ROUGE of %d completions, percent: %s", len(pairs), shown)
    return scores


def max_length(params):
    """Returns the maximum number of tokens of a prompt and its completion together."""
    own = getattr(params.predict_input, "max_sequence_length", None)
    return own or params.model.max_position_embeddings or params.train_input.max_sequence_length


def open_decoder(estimator, params, checkpoint_path, use_cs):
    """Returns a CachedDecoder of the checkpoint, a context manager that ends its session."""
    from modelzoo.common.generate.stepper import Stepper

    signature = decoder_signature(*_cache_shape(params))
    return _decoder(Stepper(estimator, checkpoint_path, use_cs, signature), params)


def _decoder(step, params):
    layers, heads, size = _cache_shape(params)
    limit = getattr(params, "max_position_embeddings", None)
    return CachedDecoder(step, layers, heads, size, limit)


def _cache_shape(params):
    """Returns the number of layers, of heads, and the size of a head."""
    model = params.model
    return model.num_hidden_layers, model.num_heads, model.hidden_size // model.num_heads


def make_requests(prompts, section, first=0):
    """Returns `num_samples` requests for each prompt, with the key (number, sample, prompt).

    Args:
        first: number of the first prompt.
    """
    greedy = section.temperature == 0 or section.top_k == 1
    return [
        Request(
            prompt.tokens,
            Sampler(
                0.0 if greedy else section.temperature,
                section.top_k,
                section.top_p,
                (section.seed, number, sample),
                section.repetition_penalty,
            ),
            section.max_new_tokens,
            section.stop,
            (number, sample, prompt),
        )
        for number, prompt in enumerate(prompts, start=first)
        for sample in range(section.num_samples)
    ]


def as_row(request, number, sample, prompt):
    """Returns the output row of a completion, with the further keys of the prompt's row."""
    return {
        **prompt.others,
        "prompt_number": number,
        "sample": sample,
        "prompt": prompt.text,
        "completion": request.text,
        "tokens": request.tokens,
        "log_probs": [round(value, 5) for value in request.log_probs],
        "finish_reason": request.finish_reason,
    }


def write_completions(rows, folder, name):
    """Writes each row to the partial file, and at the end all in order to the final file.

    Returns the path of the final file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    partial, final = folder / f"{name}.partial.jsonl", folder / f"{name}.jsonl"
    done = []
    with open(partial, "w", encoding="utf-8") as file:
        for row in rows:
            done.append(row)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
    done.sort(key=lambda row: (row["prompt_number"], row["sample"]))
    write_json_lines(final, done)
    partial.unlink()
    return final
