"""Predict mode of language models: prompts in, completions out.

Completions are written as they end, whole lines at a time, to ``predict/<name>.partial.jsonl``: a
run that is killed leaves those. When all have ended, ``predict/<name>.jsonl`` appears in their
place, in the order of the prompts; where each prompt has a reference, they are scored by ROUGE.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from modelzoo.common import predictions
from modelzoo.common.generation.cached_decoder import CachedDecoder, decoder_signature
from modelzoo.common.generation.generate import Request, generate
from modelzoo.common.generation.sampling import Sampler
from modelzoo.common.generation.stepper import Stepper
from modelzoo.common.input.prompts import read_prompts, section_tokenizer
from modelzoo.common.input_sections import GptPromptsInput
from modelzoo.common.metrics.rouge import mean_rouge
from modelzoo.common.scores import write_scalars
from modelzoo.common.whole_file import write_json_lines

REFERENCE = "reference"  # key of a prompt's row: the text that its completion is scored by


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
    prompts = read_prompts(section.prompt_file, tokenizer, params.train_input.vocab_size, limit)
    prompts = prompts[(section.skip_steps or 0) * section.batch_size :]
    predictions.require_rows(len(prompts), section)
    steps = params.runconfig.predict_steps
    if steps is not None and len(prompts) > steps * section.batch_size:
        prompts = prompts[: steps * section.batch_size]
        predictions.tell_left_out(steps)
    requests = make_requests(prompts, section)
    name = predictions.output_name("completions", estimator, use_cs)
    with open_decoder(estimator, params, checkpoint_path, use_cs) as decoder:
        done = generate(decoder, requests, tokenizer, section.batch_size, limit)
        rows = (as_row(request, *request.key) for request in done)
        path = write_as_they_come(rows, predictions.predict_folder(params), name)
    tf.logging.info("wrote %d completions to %s", len(requests), path)
    if all(REFERENCE in request.key[2].others for request in requests):
        score(requests, params.runconfig.model_dir, checkpoint_path)


def score(requests, model_dir, checkpoint_path):
    """Logs and writes the ROUGE scores of completions whose prompts have a reference.

    Args:
        requests: Requests that have ended; of several samples of a prompt each counts.
        model_dir: the scores go to its folder ``eval``.
        checkpoint_path: prefix of the checkpoint that predicted.
    """
    import tensorflow.compat.v1 as tf

    pairs = [(request.text, request.key[2].others[REFERENCE]) for request in requests]
    scores = mean_rouge(*zip(*pairs))
    step = predictions.predicted_step(checkpoint_path)
    write_scalars(os.path.join(model_dir, "eval"), step, scores)
    told = ", ".join(f"{name} {value:.2f}" for name, value in scores.items() if "f1" in name)
    tf.logging.info("ROUGE of %d completions, percent: %s", len(pairs), told)


def most_tokens(params):
    """Returns how many tokens a prompt and its completion may have together."""
    own = params.predict_input.max_sequence_length
    return own or params.model.max_position_embeddings or params.train_input.max_sequence_length


def open_decoder(estimator, params, checkpoint_path, use_cs):
    """Makes a CachedDecoder of a model with `num_hidden_layers` layers of `num_heads` heads.

    Returns:
        The decoder; a context manager that ends its session.
    """
    model = params.model
    shape = (model.num_hidden_layers, model.num_heads, model.hidden_size // model.num_heads)
    stepper = Stepper(estimator, checkpoint_path, use_cs, decoder_signature(*shape))
    return CachedDecoder(stepper, *shape, limit=getattr(params, "max_position_embeddings", None))


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
