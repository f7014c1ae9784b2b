"""Predict mode of language models: prompts in, completions out.

Completions are written as they end, whole lines at a time, to ``predict/<name>.partial.jsonl``: a
run that is killed leaves those. When all have ended, ``predict/<name>.jsonl`` appears in their
place, in the order of the prompts; where each prompt has a reference, they are scored by ROUGE.
"""

from __future__ import annotations

import json
from pathlib import Path

from modelzoo.common.config.input_sections import GptPromptsInput
from modelzoo.common.data.prompts import REFERENCE, read_prompts, section_tokenizer
from modelzoo.common.files.json_text import write_json_lines
from modelzoo.common.generate.cached_decoder import CachedDecoder, decoder_signature
from modelzoo.common.generate.generate import Request, generate
from modelzoo.common.generate.sampling import Sampler
from modelzoo.common.generate.stepper import Stepper
from modelzoo.common.metrics.rouge import mean_rouge
from modelzoo.common.train import predictions


def predict(estimator, inputs, params, checkpoint_path, use_cs):
    """Completes the prompts of ``predict_input``, or with another processor writes every row.

    Args:
        estimator: CerebrasEstimator of a model that predicts as ``driven_spec`` does.
        inputs: InputFunctions of the model.
        params: the model's parameters.
        checkpoint_path: prefix of the checkpoint.
        use_cs: whether the wafer runs the model.
    """
    import tensorflow.compat.v1 as tf

    section = params.predict_input
    if not isinstance(section, GptPromptsInput):
        predictions.predict(estimator, inputs, params, checkpoint_path, use_cs)
        return
    limit = most_tokens(params)
    tokenizer = section_tokenizer(section, params.train_input.vocab_size)
    prompts = chosen_prompts(params, tokenizer)
    requests = make_requests(prompts, section)
    tell_shortened(prompts, section.max_new_tokens, limit)
    if use_cs and params.runconfig.memoryx_dir:
        tell_plan(estimator, params, section.batch_size, most_before(params, prompts))
    name = predictions.output_name("completions", estimator, use_cs)
    with open_decoder(estimator, params, checkpoint_path, use_cs) as decoder:
        done = generate(decoder, requests, tokenizer, section.batch_size, limit)
        rows = (as_row(request, *request.key) for request in done)
        path = write_as_they_come(rows, predictions.predict_folder(params), name)
    tf.logging.info("wrote %d completions to %s", len(requests), path)
    scored = all(REFERENCE in request.key[2].others for request in requests)
    folder = Path(params.runconfig.model_dir, "eval")
    predictions.keep_scores(folder, checkpoint_path, score(requests) if scored else {})


def chosen_prompts(params, tokenizer):
    """Returns the prompts that `predict_input` asks for, and says which it leaves out.

    Raises:
        DataError: with file and line, for a row that is no prompt; if there are none.
    """
    section, vocab_size = params.predict_input, params.train_input.vocab_size
    prompts = read_prompts(section.prompt_file, tokenizer, vocab_size, most_tokens(params))
    prompts = prompts[(section.skip_steps or 0) * section.batch_size :]
    predictions.require_rows(len(prompts), section)
    steps = params.runconfig.predict_steps
    if steps is not None and len(prompts) > steps * section.batch_size:
        prompts = prompts[: steps * section.batch_size]
        predictions.tell_left_out(steps)
    return prompts


def tell_shortened(prompts, max_new_tokens, limit):
    """Says how many prompts leave less room than `max_new_tokens` within `limit` tokens."""
    import tensorflow.compat.v1 as tf

    rooms = [limit - len(prompt.tokens) for prompt in prompts]
    short = [room for room in rooms if room < max_new_tokens]
    if short:
        least, most = min(short), max(short)
        tf.logging.warning(
            "max_new_tokens is %d, but within %d tokens (max_sequence_length, or the model's "
            "positions) %d of %d prompts leave room for %s: their completions end there, as "
            "finished by length. Raise max_sequence_length where the model has more positions, or "
            "shorten the prompts.",
            max_new_tokens,
            limit,
            len(short),
            len(rooms),
            least if least == most else f"{least} to {most}",
        )


def most_before(params, prompts):
    """Returns how many tokens the last token of a completion may have before it."""
    longest = max(len(prompt.tokens) for prompt in prompts)
    return min(longest + params.predict_input.max_new_tokens, most_tokens(params)) - 1


def compile_prediction(estimator, inputs, params, **options):
    """Compiles what `predict` runs: of a generation the step that makes a completion's last token.

    Args:
        estimator: as `predict` takes it.
        inputs: as `predict` takes it.
        params: the model's parameters.
        **options: of CerebrasEstimator.compile.
    """
    import tensorflow.compat.v1 as tf

    section = params.predict_input
    if not isinstance(section, GptPromptsInput):
        estimator.compile(inputs.predict, mode=tf.estimator.ModeKeys.PREDICT, **options)
        return
    tokenizer = section_tokenizer(section, params.train_input.vocab_size)
    before = most_before(params, chosen_prompts(params, tokenizer))
    _compile_token(estimator, params, section.batch_size, before, options)


def tell_plan(estimator, params, rows, before):
    """Says what a token of a generation takes: from files what it reads, how long, and why.

    Args:
        estimator: as `predict` takes it.
        params: the model's parameters.
        rows: completions that are made at the same time.
        before: most tokens before one.
    """
    _compile_token(estimator, params, rows, before, {"validate_only": True})


def _compile_token(estimator, params, rows, before, options):
    import tensorflow.compat.v1 as tf

    shapes = _decoder(None, params).token_shapes(rows, before)

    def input_fn():
        def zeros(_):
            return {name: tf.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}

        return tf.data.Dataset.from_tensors(0).map(zeros)

    tf.logging.info("a step makes a token a row of %d, behind up to %d others:", rows, before)
    estimator.compile(input_fn, mode=tf.estimator.ModeKeys.PREDICT, **options)


def score(requests):
    """Logs and returns the ROUGE scores of completions whose prompts have a reference.

    Args:
        requests: Requests that have ended; of several samples of a prompt each counts.
    """
    import tensorflow.compat.v1 as tf

    pairs = [(request.text, request.key[2].others[REFERENCE]) for request in requests]
    scores = mean_rouge(*zip(*pairs))
    told = ", ".join(f"{name} {value:.2f}" for name, value in scores.items() if "f1" in name)
    tf.logging.info("ROUGE of %d completions, percent: %s", len(pairs), told)
    return scores


def most_tokens(params):
    """Returns how many tokens a prompt and its completion may have together."""
    own = params.predict_input.max_sequence_length
    return own or params.model.max_position_embeddings or params.train_input.max_sequence_length


def open_decoder(estimator, params, checkpoint_path, use_cs):
    """Makes a CachedDecoder of a model with `num_hidden_layers` layers of `num_heads` heads.

    Returns:
        The decoder; a context manager that ends its session.
    """
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


def make_requests(prompts, section):
    """Returns `num_samples` requests for each prompt; their key is (number, sample, prompt)."""
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
        for number, prompt in enumerate(prompts)
        for sample in range(section.num_samples)
    ]


def as_row(request, number, sample, prompt):
    """Returns the row of a completion: what the prompt's row had, and what was made of it."""
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


def write_as_they_come(rows, folder, name):
    """Writes rows to a file that grows, then all in order of prompt and sample to its final place.

    Args:
        rows: iterable of dictionaries.
        folder: made if absent.
        name: file name without its end.

    Returns:
        The path of the final file.
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
