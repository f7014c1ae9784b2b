"""Makes the estimator of a model, and checks checkpoints against the model before training."""

import functools
import re
from dataclasses import fields
from pathlib import PurePosixPath

import tensorflow.compat.v1 as tf

from cerebras_tf import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from cerebras_tf.api import (
    EXECUTION_MODE,
    check_wafer_address,
    job,
    named,
    saved_shapes,
    set_stop_message,
)
from cerebras_tf.config import schema
from cerebras_tf.config.run_options import SharedOptions
from cerebras_tf.errors import CheckpointError, DataError
from modelzoo.common.config.model_sections import count_vocabulary
from modelzoo.common.config.params import save_params
from modelzoo.common.data.prepared import check_tokens
from modelzoo.common.model_dir import resume
from modelzoo.common.model_dir.checkpoint_files import (
    advice_instead,
    chosen_checkpoint,
    find_checkpoint,
    latest_checkpoint,
)
from modelzoo.common.model_dir.folder import write_text_summary
from modelzoo.common.model_dir.source_files import copy_source_files, copy_tokenizer
from modelzoo.common.train.trained_on import save_vocabulary

__all__ = [
    "BatchesHook",
    "CSEstimatorSpec",
    "CheckpointHook",
    "StartHook",
    "check_batches",
    "check_variables",
    "make_estimator",
]

ANOTHER_FOLDER = (
    "Use another folder with -o, or the params file that this checkpoint was trained with."
)
ANOTHER_CHECKPOINT = "Use another --checkpoint_path, or the params file that it was trained with."
MAX_NAMED = 12  # variables in an error
# Of optimizers/training.py.
GRADIENT_SUMS = re.compile(rf"accum_step_counter|{resume.COSTS}|.*_grad_accum_\d+")


def make_estimator(model_fn, params, use_cs, warm_start_excludes=()):
    """Makes the estimator that `params` describe.

    Args:
        warm_start_excludes: parts of the names of variables that training does not load from
            ``runconfig.checkpoint_path``, such as a task's output layer.
    """
    runconfig = params.runconfig
    if use_cs:
        check_wafer_address(runconfig.cs_ip, runconfig.credentials_path)
    # Training continues from a checkpoint of the folder, and then ignores checkpoint_path.
    trains = runconfig.mode in ("train", "train_and_eval")
    latest = continued_checkpoint(runconfig) if trains else None
    warm_start = runconfig.checkpoint_path
    partially = runconfig.restore_partially
    in_step = False  # whether the checkpoint is of an incomplete step
    if latest:
        in_step = bool(resume.checkpoint_counts(runconfig.model_dir)[1])
        compare = check_shapes if partially else check_all_variables
        partially |= changes_accumulation(params, use_cs and not in_step)
        model_fn = checked(model_fn, latest, tf.global_variables, compare)
    elif trains and warm_start:
        warm_start = find_checkpoint(warm_start)
        kept = re.compile(f"^(?!.*({'|'.join(map(re.escape, warm_start_excludes)) or '(?!)'}))")

        def warm_start_variables():
            return [v for v in tf.trainable_variables() if kept.match(v.op.name)]

        model_fn = checked(model_fn, warm_start, warm_start_variables, check_warm_start)
        warm_start = tf.estimator.WarmStartSettings(warm_start, vars_to_warm_start=kept.pattern)
    elif runconfig.validate_only and not trains:
        path = chosen_checkpoint(runconfig)
        model_fn = checked(model_fn, path, tf.global_variables, check_variables, runconfig.mode)
    every = runconfig.log_step_count_steps or runconfig.save_summary_steps
    shared = {each.name: getattr(runconfig, each.name) for each in fields(SharedOptions)}
    shared.update(restore_partially=partially)
    config = CSRunConfig(
        model_dir=runconfig.model_dir,
        stack_params={"ir_mode": runconfig.ir_mode},
        tf_random_seed=runconfig.tf_random_seed,
        save_summary_steps=runconfig.save_summary_steps,
        save_checkpoints_steps=runconfig.save_checkpoints_steps,
        keep_checkpoint_max=runconfig.keep_checkpoint_max,
        log_step_count_steps=None if runconfig.disable_standard_logs else every,
        device_fn=(lambda op: runconfig.device) if runconfig.device else None,
        use_vsl=getattr(params.model, "use_vsl", None),
        cs_config=params.csconfig,
        **shared,
    )
    return CerebrasEstimator(
        model_fn=model_fn,
        model_dir=runconfig.model_dir,
        compile_dir=runconfig.compile_dir,
        config=config,
        params=schema.as_tree(params),
        warm_start_from=warm_start if trains and not latest else None,
        use_cs=use_cs,
        batches_per_step=params.batches_per_step,
        accumulate_in_model_fn=in_step,
    )


def continued_checkpoint(runconfig):
    """Returns the checkpoint that training continues from, or None.

    It is the latest of model_dir. To validate, it may be `resume_from`, which training would copy.
    """
    latest = latest_checkpoint(runconfig.model_dir)
    if not latest and runconfig.validate_only and runconfig.resume_from:
        return find_checkpoint(runconfig.resume_from, "resume_from")
    return latest


def changes_accumulation(params, by_estimator):
    """Returns whether variables of gradient accumulation are added to the checkpoint or removed.

    They are zero between two steps, so a checkpoint of a completed step can be restored with or
    without them. A checkpoint of an incomplete step may lack the sums of costs; they then start at
    zero.

    `by_estimator` is whether the estimator accumulates gradients where it can.
    """
    model_dir, batches_per_step = params.runconfig.model_dir, params.batches_per_step
    step, done = resume.checkpoint_counts(model_dir)
    before = resume.batches_after(step, resume.read_history(model_dir), batches_per_step)
    if done and before != batches_per_step:
        raise CheckpointError(
            f"{model_dir}: must complete its current step before the number of batches per step "
            f"changes to {batches_per_step} (num_csx times grad_accum_steps). Received: {done} of "
            f"{before} batches after step {step}. Run the previous command with --max_steps "
            f"{step + 1} first."
        )
    by_estimator &= job.wafers() == 1 and EXECUTION_MODE.get() == "weight_streaming"
    in_model_fn = params.batches_per_process > 1 and not by_estimator
    if (done is not None) != in_model_fn:
        return True
    return done is not None and resume.COSTS not in saved_shapes(latest_checkpoint(model_dir))


def checked(model_fn, path, variables, compare, mode="train"):
    """Returns a model_fn that, in a mode, first compares its variables with a checkpoint.

    This happens before tf.estimator opens any file in the folder.

    Args:
        variables: called once the graph is built; returns those that will be loaded.
        compare: function of path and variables that raises a CheckpointError if they do not fit.
    """

    modes = tf.estimator.ModeKeys
    checked_mode = {"train": modes.TRAIN, "predict": modes.PREDICT}.get(mode, modes.EVAL)

    @functools.wraps(model_fn)
    def call(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        if mode == checked_mode:
            compare(path, variables())
        return spec

    return call


class CheckpointHook(tf.estimator.SessionRunHook):
    """Checks a checkpoint before it is loaded, and logs which of its weights are not used.

    Args:
        logs_unused: whether to log unused weights; of a model in several graphs the last one does.
        used: set of the names that the model's other graphs use, to which this one's are added.
    """

    def __init__(self, path, logs_unused=True, used=None):
        self._path = path
        self._logs_unused = logs_unused
        self._used = set() if used is None else used

    def begin(self):
        """Compares the variables of the model with those of the checkpoint."""
        check_variables(self._path, tf.global_variables())
        self._used.update(variable.op.name for variable in tf.global_variables())
        if self._logs_unused:
            log_unused(self._path, self._used)


class BatchesHook(tf.estimator.SessionRunHook):
    """Raises an error if an evaluation has no batches: its metrics would be zeros."""

    def __init__(self):
        self._batches = 0

    def begin(self):
        """Starts counting."""
        self._batches = 0

    def after_run(self, run_context, run_values):
        """Counts a batch."""
        self._batches += 1

    def end(self, session):
        """Raises a DataError if there was no batch; of several wafers the first has one."""
        if not self._batches and job.is_first():
            raise without_batches()


def without_batches():
    """Returns the error of an evaluation without batches."""
    return DataError(
        "eval_input: must have at least one batch. Received: none. Use other data; skip_steps and "
        "batch_size must leave a batch of them."
    )


def check_batches(inputs, section, params):
    """Reads the first batch of an input section, which raises the errors of its data."""
    input_fn = getattr(inputs, section.removesuffix("_input"))
    with tf.Graph().as_default():
        batches = tf.data.make_initializable_iterator(input_fn(schema.as_tree(params)))
        batch = batches.get_next()
        with tf.Session() as session:
            session.run([batches.initializer, tf.tables_initializer()])
            try:
                values = session.run(batch)
            except tf.errors.OutOfRangeError as error:
                if section == "eval_input":
                    raise without_batches() from error
                return
    features = values[0] if isinstance(values, tuple) else values
    given = getattr(params, section)
    if "input_ids" in features and hasattr(given, "vocab_size"):
        vocab_size = count_vocabulary(given) or count_vocabulary(params.train_input)
        check_tokens(section, features["input_ids"].ravel(), vocab_size)


class StartHook(tf.estimator.SessionRunHook):
    """Writes the parameters once training begins, and logs how many wafers compute a step.

    ``params.yaml``, its text for TensorBoard, ``data_position.json``, ``trained_on.json`` and the
    source files of the checkpoint that training starts from are written when the model is ready, so
    that a run that fails earlier does not change the folder.
    """

    def __init__(self, params, step):
        self._params = params
        self._step = step

    def after_create_session(self, session, coord):
        """Writes the parameters."""
        set_stop_message(None)  # from now on the estimator reports the step
        wafers, here = self._params.runconfig.num_csx, job.wafers()
        if wafers > 1:
            tf.logging.info(
                "num_csx %d: %s batches of %d%s, %d examples per step",
                wafers,
                "one wafer computes their" if here == 1 else f"{here} wafers compute",
                self._params.train_input.batch_size,
                " sequentially" if here < wafers else "",
                self._params.global_batch_size,
            )
        if not job.is_first():
            return
        model_dir = self._params.runconfig.model_dir
        section = self._params.train_input
        sizes = section.batch_size, getattr(section, "max_sequence_length", None) or 0
        resume.remember_position(model_dir, self._step, self._params.batches_per_step, sizes)
        save_vocabulary(self._params, self._step)
        copy_source_files(self._params.runconfig)
        copy_tokenizer(section, model_dir)
        write_text_summary(model_dir, save_params(self._params, model_dir), self._step)


def check_variables(path, variables, advice=ANOTHER_FOLDER):
    """Compares variables with those of a checkpoint."""
    saved = saved_variables(path)
    shapes = {variable.op.name: variable.shape.as_list() for variable in variables}
    wrong = [
        f"{name} has shape {saved[name]} in the checkpoint and {shape} in the model"
        for name, shape in shapes.items()
        if name in saved and saved[name] != shape
    ] + [f"{name} is not there" for name in shapes if name not in saved]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"{path}: must match the model. Received: {'; '.join(wrong[:3])}{more}. {advice}"
        )


def check_warm_start(path, variables):
    """Compares variables with the checkpoint of a warm start, and logs unused weights."""
    check_variables(path, variables, ANOTHER_CHECKPOINT)
    log_unused(path, {variable.op.name for variable in variables})


def log_unused(path, known):
    """Logs a warning about the weights of a checkpoint that are not among the known names.

    Optimizer state is not listed: its names begin with those of weights, or it is a scalar.
    """
    shapes = saved_variables(path)
    unused = sorted(
        name
        for name in shapes.keys() - known
        if shapes[name] and not GRADIENT_SUMS.fullmatch(name)
        if not any(str(above) in shapes for above in PurePosixPath(name).parents)
    )
    if unused:
        tf.logging.warning(
            "%s contains %d weights that are not used here: %s", path, len(unused), named(unused)
        )


def check_shapes(path, variables):
    """Compares the variables that a checkpoint contains with it, as `check_variables` does."""
    saved = saved_variables(path)
    check_variables(path, [variable for variable in variables if variable.op.name in saved])


def check_all_variables(path, variables):
    """Compares a checkpoint that training continues from with all variables of the model.

    Sums of gradients are not compared, see `changes_accumulation`. Later checkpoints contain the
    model's variables only, so that other variables of this one, such as more layers or the state of
    another optimizer, would be lost.
    """
    variables = [each for each in variables if not GRADIENT_SUMS.fullmatch(each.op.name)]
    check_variables(path, variables)
    beyond = sorted(
        name
        for name in saved_variables(path).keys() - {variable.op.name for variable in variables}
        if not GRADIENT_SUMS.fullmatch(name)
    )
    if beyond:
        more = f" and {len(beyond) - MAX_NAMED} more" if len(beyond) > MAX_NAMED else ""
        raise CheckpointError(
            f"{path}: must match the model. Received: {len(beyond)} variables that are not in the "
            f"model and would be lost: {', '.join(beyond[:MAX_NAMED])}{more}. {ANOTHER_FOLDER} Or "
            "set runconfig.restore_partially to True to continue without them."
        )


def saved_variables(path):
    """Returns the shapes of the variables in a checkpoint, by name."""
    try:
        return saved_shapes(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error} {advice_instead(path)}") from error
