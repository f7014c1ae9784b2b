"""Samples of a language model in training: texts on the console and for TensorBoard."""

import tensorflow.compat.v1 as tf

from cerebras_tf.api import pause_training, progress_bar
from modelzoo.common.config.input_sections import GptPromptsInput
from modelzoo.common.data.model_tokenizer import TokenizerKeys, load_model_tokenizer
from modelzoo.common.data.prompts import make_prompt
from modelzoo.common.generate.generate import stream, without_controls
from modelzoo.common.generate.prediction import make_requests, max_length, open_decoder
from modelzoo.common.model_dir.checkpoint_files import latest_checkpoint
from modelzoo.common.model_dir.folder import write_text_summary

# Every sample uses the same random numbers, so that they show what the model has learned.
SAMPLING = GptPromptsInput(
    data_processor="GptPromptsProcessor",
    prompt_file="",
    batch_size=1,
    max_new_tokens=200,
    temperature=0.8,
)


class SampleListener(tf.estimator.CheckpointSaverListener):
    """Generates a text from every checkpoint that `runconfig.sample_every` selects.

    Args:
        estimator: the estimator in training.
        params: LanguageModelParams.
    """

    def __init__(self, estimator, params):
        self._estimator = estimator
        self._params = params
        self._tokenizer = load_model_tokenizer(params, TokenizerKeys())

    def after_save(self, session, global_step_value):
        """Logs a sample and writes its event."""
        step, runconfig = int(global_step_value), self._params.runconfig
        if not step or step % runconfig.sample_every:
            return
        prompt = make_prompt(runconfig.sample_prompt, "runconfig.sample_prompt", self._tokenizer)
        (request,) = make_requests([prompt], SAMPLING)
        path, use_cs = latest_checkpoint(runconfig.model_dir), not runconfig.device
        verbosity = tf.logging.get_verbosity()
        tf.logging.set_verbosity(tf.logging.WARN)  # no lines about compiling and loading
        try:
            with (
                pause_training(),
                progress_bar(request.max_new_tokens, "token", text="sample") as bar,
                open_decoder(self._estimator, self._params, path, use_cs) as decoder,
            ):
                for _ in stream(decoder, request, self._tokenizer, max_length(self._params)):
                    bar.update()
        finally:
            tf.logging.set_verbosity(verbosity)
        text = without_controls(prompt.text + request.text)
        tf.logging.info("sample at step %d:\n%s", step, text)
        write_text_summary(runconfig.model_dir, text, step, "sample")
