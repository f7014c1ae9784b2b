"""The one runner of all models: ``python -m modelzoo.common.train.run -m train -p FILE -o FOLDER``.

The YAML names the model, and the estimator trains. ``-o`` defaults to ``model_dir/<name>`` for
``params_<name>.yaml``. The model runs on the wafer; ``--device /cpu:0`` (or ``runconfig.device``)
runs it on the host instead.
"""

import contextlib
import dataclasses
import functools
import os
import sys

from cerebras_tf.api import (
    check_loggers,
    job,
    mpi,
    paused_collector,
    precompile,
    run_main,
    set_stop_message,
)
from cerebras_tf.config import schema
from cerebras_tf.environment import EXECUTION_MODE, PROGRAM
from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from modelzoo.common.config import registry
from modelzoo.common.config.input_sections import LanguageModelParams
from modelzoo.common.config.original import log_unread
from modelzoo.common.config.params import load_params, saved_difference
from modelzoo.common.model_dir import folder
from modelzoo.common.train.arguments import parse_arguments
from modelzoo.common.train.console import (
    exit_on_signal,
    log_loading,
    quiet_logging,
    quiet_native_logging,
)
from modelzoo.common.train.file_errors import file_errors_named, system_errors_named

TRAINING = ("train", "train_and_eval")
# The modes in which an option has an effect.
EFFECTIVE = {
    **dict.fromkeys(("steps", "max_steps", "save_checkpoints_steps"), TRAINING),
    **dict.fromkeys(("save_summary_steps", "resume_from", "profile"), TRAINING),
    **dict.fromkeys(("sample_every", "sample_prompt"), TRAINING),
    "eval_steps": ("train_and_eval", "eval", "eval_all"),
    "checkpoint_path": ("train", "train_and_eval", "eval", "predict"),
}
# The option that sets the number of batches of a mode.
BATCHES = {"train": "-m train_and_eval", "predict": "runconfig.predict_steps"}
SECTIONS = {
    "train": ("train_input",),
    "train_and_eval": ("train_input", "eval_input"),
    "eval": ("eval_input",),
    "eval_all": ("eval_input",),
    "predict": ("predict_input",),
}


def run(model_name=None):
    """Runs this process's command line and exits; the whole of a model's ``run.py``.

    Args:
        model_name: the model of YAMLs without a top-level ``model_name``.
    """
    quiet_native_logging()
    program = PROGRAM.get()
    bound = functools.partial(main, model_name=model_name, program=program)
    status = run_main(bound, program=program)
    if status:
        mpi.fail()
    sys.exit(status)


def main(argv, model_name=None, program=None):
    """Runs one command line.

    Args:
        program: name shown in help and mistakes; None for that of this process.

    Raises:
        CerebrasError: for whatever the user can fix.
    """
    execute(parse_arguments(argv, program), model_name)


def execute(args, model_name=None):
    """Runs what the RunArguments `args` ask for; see `main`."""
    set_stop_message(f"{args.mode} was stopped while it read {args.params}, before it started")
    params = read_params(args, model_name)
    runconfig = params.runconfig
    if params.model_name in registry.TORCH_MODELS:
        run_without_tensorflow(args, params)
        return
    if will_train(params, args.mode) and not params.model.mixed_precision:
        precompile()  # kernels of float32
    loading = "stopped while TensorFlow was loading, before the start"
    with exit_on_signal(loading), paused_collector(lasting=True):
        log_loading(f"{args.mode}: {params.model_name} of {args.params}, in {runconfig.model_dir}")
        registry.load_model(params.model_name)
    place = "before its first step" if "train" in args.mode else "before its end"
    set_stop_message(f"{args.mode} was stopped {place}; run the same command to start again")
    with file_errors_named(params, SECTIONS[args.mode]), lock_for(args.mode, runconfig):
        if args.mode in TRAINING:
            from modelzoo.common.model_dir.checkpoint_files import warn_of_checkpoint

            warn_of_checkpoint(args.params, runconfig)
        run_mode(args.mode, params)


def run_without_tensorflow(args, params):
    """Runs a model of registry.TORCH_MODELS."""
    model_dir = params.runconfig.model_dir
    log_loading(f"{args.mode}: {params.model_name} of {args.params}, in {model_dir}", "PyTorch")
    with exit_on_signal("stopped while PyTorch was loading, before the start"), paused_collector():
        engine = registry.load_engine(params.model_name)
    with system_errors_named(model_dir):
        engine.run_mode(args.mode, params)


def will_train(params, mode):
    """Whether a run takes training steps on the wafer."""
    runconfig = params.runconfig
    only_compiles = runconfig.validate_only or runconfig.compile_only
    return mode in TRAINING and not only_compiles and not runconfig.device


def lock_for(mode, runconfig):
    """Locks the model folder for training, before data are read; writes nothing to validate."""
    if mode not in TRAINING or not job.is_first():
        return contextlib.nullcontext()
    from cerebras_tf.api import locked

    return locked(runconfig.model_dir, writes=not runconfig.validate_only)


def read_params(args, model_name=None):
    """Loads the YAML with the options of the command line, and checks it for the mode."""
    overrides = args.overrides() | launchers_overrides()
    unread: list[str] = []
    params = load_params(args.params, overrides, model_name, args.settings, unread)
    runconfig = params.runconfig
    unread += (f"runconfig.{key} (a key of the cluster)" for key in runconfig.without_effect())
    log_unread(args.params, unread)
    missing = [name for name in SECTIONS[args.mode] if getattr(params, name, None) is None]
    if missing:
        raise ConfigError(
            f"{args.params}: mode {args.mode} requires the section {' and '.join(missing)}. "
            f"Received: none. Add it to the file. {params.ADVICE[missing[0]]}"
        )
    check_options(args, runconfig, isinstance(params, LanguageModelParams))
    model_dir = runconfig.model_dir or folder.default_model_dir(args.params)
    changed = {"model_dir": model_dir, **replaced_ends(args), **replaced_start(args, model_dir)}
    runconfig = dataclasses.replace(runconfig, **changed)
    folder.check_places(runconfig, args.mode)
    return dataclasses.replace(params, runconfig=runconfig)


def replaced_ends(args):
    """Returns steps or max_steps, with None, if the command line sets only the other of them."""
    ends = {"steps", "max_steps"}
    given = ends & given_keys(args)
    return dict.fromkeys(ends - given) if given else {}


def replaced_start(args, model_dir):
    """Returns checkpoint_path, with None, for an evaluation by the params.yaml of a model folder.

    There the key is the checkpoint that training started from, not the one to evaluate.
    """
    own = os.path.join(model_dir, "params.yaml")
    if args.mode in TRAINING or "checkpoint_path" in given_keys(args) or not os.path.exists(own):
        return {}
    return {"checkpoint_path": None} if os.path.samefile(own, args.params) else {}


def given_keys(args):
    """Returns the keys of runconfig that the command line sets."""
    return {*args.given, *(key.removeprefix("runconfig.") for key, _ in args.settings)}


def launchers_overrides():
    """Returns the options of the launcher that override keys of the YAML, by dotted key."""
    number = job.num_csx()
    return {} if number is None else {"runconfig.num_csx": number}


def check_options(args, runconfig, is_language_model):
    """Raises a ConfigError for options that are missing or have no effect in a mode."""
    trains = args.mode in TRAINING
    if trains and runconfig.max_steps is None and runconfig.steps is None:
        raise ConfigError(
            f"{args.params}: training requires runconfig.max_steps or --steps. Set one of them."
        )
    for name, modes in EFFECTIVE.items():
        if name in args.given and args.mode not in modes:
            raise ConfigError(
                f"--{name}: applies to {', '.join(modes)} only. Received: {args.given[name]}, with "
                f"mode {args.mode}. Remove it; {BATCHES.get(args.mode, '--eval_steps')} sets the "
                "number of batches."
            )
    if trains and runconfig.sample_every and not is_language_model:
        raise ConfigError(
            f"{args.params}: runconfig.sample_every must be used with a model that predicts the "
            f"next token. Received: {runconfig.sample_every}. Remove it."
        )
    if trains and runconfig.profile and runconfig.device:
        raise ConfigError(
            "runconfig.profile: only steps on the wafer can be profiled. Received: "
            f"{runconfig.profile}, with device {runconfig.device}. Remove it."
        )
    for name in ("keep_best_checkpoint", "early_stopping"):
        if args.mode == "train" and getattr(runconfig, name):
            raise ConfigError(
                f"{args.params}: runconfig.{name} requires evaluations, but mode train makes none. "
                "Run with -m train_and_eval, or remove the key."
            )


def run_mode(mode, params):
    """Builds the estimator of `params` and runs `mode`."""
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.checkpoint_files import check_start, resumed, validate_checkpoint

    quiet_logging(tf)
    runconfig = params.runconfig
    strategy, runs = runconfig.execution_strategy, EXECUTION_MODE.get()
    if strategy not in (None, runs):
        raise ConfigError(
            f"runconfig.execution_strategy: must be the launcher's, {runs}. Received: {strategy}. "
            f"Set the environment variable {EXECUTION_MODE.name}={strategy}, as python-ws "
            "(weight_streaming) and python (pipeline) do, or remove the key."
        )
    trains = mode in TRAINING
    only_compiles = runconfig.validate_only or runconfig.compile_only
    if trains:
        check_start(runconfig)
    if runconfig.validate_only:
        validate_checkpoint(mode, runconfig)
    with resumed(runconfig) if trains and not only_compiles else contextlib.nullcontext():
        show_difference(mode, params)
        start_mode(mode, params)


def start_mode(mode, params):
    """Builds the estimator and runs `mode` in the prepared model folder."""
    from modelzoo.common.data.prepared import check_normalization, check_sections
    from modelzoo.common.train.estimator import make_estimator

    runconfig = params.runconfig
    names = ("train_input", *SECTIONS[mode])
    sections = {name: getattr(params, name) for name in names}
    check_sections(list(sections.values()), params.label_count)
    check_normalization(sections, find_start_source(mode, runconfig))
    model, data = registry.load_model(params.model_name)
    use_cs = not runconfig.device
    folder.check_device(runconfig.device)
    excludes = getattr(model, "WARM_START_EXCLUDES", ())
    excludes = excludes(params) if callable(excludes) else excludes
    if mode in TRAINING and excludes and keeps_output_layer(params, excludes):
        excludes = ()
    estimator = make_estimator(model.model_fn, params, use_cs, excludes)
    if runconfig.validate_only:
        validate(estimator, model, data, mode, params)
    elif runconfig.compile_only:
        compile_model(estimator, data, mode, params)
    elif mode in TRAINING:
        train(estimator, model, data, mode, params)
    elif mode == "predict":
        predict(estimator, data, params, use_cs)
    else:
        evaluate(estimator, data, mode, runconfig, use_cs)


def keeps_output_layer(params, excludes):
    """Whether checkpoint_path is of the same task with the same labels, by its params.yaml.

    Args:
        excludes: parts of the names of the variables of the output layer.
    """
    import tensorflow.compat.v1 as tf

    from modelzoo.common.data.prepared import known_labels
    from modelzoo.common.model_dir.checkpoint_files import find_checkpoint, latest_checkpoint

    runconfig = params.runconfig
    if not runconfig.checkpoint_path or latest_checkpoint(runconfig.model_dir):
        return False
    path = find_checkpoint(runconfig.checkpoint_path)
    own = os.path.join(os.path.dirname(path), "params.yaml")
    saved = {name for name, _ in tf.train.list_variables(path)}
    if not os.path.exists(own) or not all(any(x in name for name in saved) for x in excludes):
        return False
    try:
        before = load_params(own)
        labels = [known_labels(each.train_input) for each in (before, params)]
    except (ConfigError, DataError):
        return False
    has_labels = params.label_count or hasattr(params.train_input, "label_vocab_file")
    if before.model_name != params.model_name or labels[0] != labels[1]:
        return False
    if has_labels and labels[0] is None:
        return False
    tf.logging.info("the output layer of %s is kept, because its task and labels are equal", path)
    return True


def find_start_source(mode, runconfig):
    """Returns the folder with the source files of the checkpoint that a run starts from, or None.

    A damaged params.yaml of an earlier run names no folder; `show_difference` logs it.
    """
    from modelzoo.common.model_dir.checkpoint_files import latest_checkpoint
    from modelzoo.common.model_dir.source_files import find_source, folder_of

    start = runconfig.checkpoint_path or runconfig.model_dir
    if mode in TRAINING:
        own = latest_checkpoint(runconfig.model_dir)
        start = own or runconfig.checkpoint_path or runconfig.resume_from
    try:
        return start and find_source(folder_of(start))
    except (ConfigError, DataError):
        return None


def show_difference(mode, params):
    """Logs how the parameters differ from those of earlier runs in the model folder.

    The section ``runconfig``, with the options of the command line, is compared only in training,
    which saves it. If nothing is left to train, nothing is compared.
    """
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.resume import checkpoint_step

    trains = mode in TRAINING
    step = checkpoint_step(params.runconfig.model_dir) if trains else 0
    if trains and step >= last_step(params.runconfig, step):
        return
    names = [field.name for field in dataclasses.fields(params)]
    if not trains:
        names.remove("runconfig")
    try:
        lines = saved_difference(params, params.runconfig.model_dir, names)
    except (ConfigError, DataError) as error:
        tf.logging.warning("parameters of earlier runs are not compared: %s", error)
        return
    if lines:
        text = "".join(f"\n  {line}" for line in lines)
        tf.logging.info("the parameters differ from those of earlier runs:%s", text)


def sparsifier_of(params):
    """Returns the sparsifier of training, or None."""
    return params.sparsity and params.sparsity.sparsifier()


def compile_model(estimator, data, mode, params, fault=None):
    """Compiles the model for `mode` without running it; train_and_eval compiles both.

    Without data, it compiles for the batches of the params file. To validate, it writes nothing,
    and raises an error if memory is too small.

    Args:
        fault: an error of the data that the caller will raise, which is not logged.
    """
    import tensorflow.compat.v1 as tf

    modes, package = tf.estimator.ModeKeys, registry.find_prediction(params.model_name)
    given = {"save": not params.runconfig.validate_only, "sparsifier": sparsifier_of(params)}
    if mode == "predict" and hasattr(package, "compile_prediction"):
        package.compile_prediction(estimator, data.INPUTS, params, **given)
        return
    training = (data.INPUTS.train, modes.TRAIN, "train_input")
    evaluation = (data.INPUTS.eval, modes.EVAL, "eval_input")
    for input_fn, key, section in {
        "train": [training],
        "train_and_eval": [training, evaluation],
        "eval": [evaluation],
        "eval_all": [evaluation],
        "predict": [(data.INPUTS.predict, modes.PREDICT, "predict_input")],
    }[mode]:
        try:
            estimator.compile(input_fn, mode=key, **given)
        except DataError as missing:
            reason = "" if str(missing) == str(fault) else f": {missing}"
            tf.logging.info("compiling for the batches of the params file%s", reason)
            estimator.compile(data.INPUTS.without_data(section), mode=key, **given)


def validate(estimator, model, data, mode, params):
    """Checks what a run of `mode` would check by its first step, and runs and writes nothing."""
    from modelzoo.common.model_dir.checkpoint_files import find_checkpoint
    from modelzoo.common.model_dir.resume import checkpoint_step
    from modelzoo.common.train.estimator import check_batches, check_variables
    from modelzoo.common.train.evaluations import Evaluations
    from modelzoo.common.train.trained_on import check_vocabulary

    runconfig = params.runconfig
    step = checkpoint_step(runconfig.model_dir) if mode in TRAINING else 0
    check_loggers(runconfig.loggers, list(log_folders(mode, runconfig.model_dir)))
    if mode in TRAINING:
        source = None if step else runconfig.resume_from
        source = source and os.path.dirname(find_checkpoint(source, "resume_from"))
        check_vocabulary(params, step or source, source)
        if runconfig.checkpoint_path and not step:
            check_variables(find_checkpoint(runconfig.checkpoint_path), [])
    reads_prompts = hasattr(registry.find_prediction(params.model_name), "compile_prediction")
    fault = None
    try:
        for section in () if mode == "predict" and reads_prompts else SECTIONS[mode]:
            check_batches(data.INPUTS, section, params)
    except DataError as error:
        fault = error
    compile_model(estimator, data, mode, params, fault)  # shows the memory, also without data
    if fault is not None:
        raise fault
    if mode == "train_and_eval":
        check_evaluation(model, data, params, Evaluations(runconfig, step))


def log_folders(mode, model_dir):
    """Yields the folders of the logs that a mode writes."""
    if mode in TRAINING:
        yield model_dir
    if "eval" in mode:
        yield os.path.join(model_dir, "eval")


def last_step(runconfig, step):
    """Returns the global step at which training ends: `steps` more, at most `max_steps`."""
    ends = [runconfig.max_steps, None if runconfig.steps is None else step + runconfig.steps]
    return min(end for end in ends if end is not None)


def train(estimator, model, data, mode, params):
    """Trains up to the last step, evaluating at every checkpoint if `mode` is train_and_eval."""
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.checkpoint_files import find_checkpoint
    from modelzoo.common.model_dir.resume import checkpoint_step
    from modelzoo.common.train.estimator import StartHook, check_variables
    from modelzoo.common.train.evaluations import EarlyStopHook, Evaluations
    from modelzoo.common.train.trained_on import check_vocabulary

    runconfig = params.runconfig
    step = checkpoint_step(runconfig.model_dir)
    end = last_step(runconfig, step)
    if step < end:
        check_vocabulary(params, step)
    evaluations = Evaluations(runconfig, step)
    if mode == "train_and_eval":
        evaluate_missing(estimator, model, data, params, evaluations, end)
    if step >= end or evaluations.stopped:
        bounds = ["--max_steps"] if step >= end else []
        bounds += ["runconfig.early_stopping.patience"] if evaluations.stopped else []
        tf.logging.info(
            "nothing to train: %s is at step %d of %d%s. Increase %s, or use another folder with "
            "-o.",
            runconfig.model_dir,
            step,
            end,
            f", and {evaluations.stopped}" if evaluations.stopped else "",
            " and ".join(bounds),
        )
        return
    if runconfig.checkpoint_path and not step:
        check_variables(find_checkpoint(runconfig.checkpoint_path), [])
    if mode == "train_and_eval":
        check_evaluation(model, data, params, evaluations)
    hooks = [StartHook(params, step), EarlyStopHook(evaluations)]
    train_until(estimator, data, mode, params, hooks, end, evaluations)
    reached = checkpoint_step(runconfig.model_dir)
    if reached < end and not (params.train_input.repeat or evaluations.stopped):
        tf.logging.warning(
            "end of train_input at step %d of %d. Set train_input.repeat to True to continue.",
            reached,
            end,
        )


def evaluate_missing(estimator, model, data, params, evaluations, end):
    """Evaluates the last checkpoint if its evaluation is missing, as after a stop."""
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.checkpoint_files import latest_checkpoint
    from modelzoo.common.model_dir.resume import checkpoint_step
    from modelzoo.common.train.estimator import BatchesHook, CheckpointHook

    runconfig = params.runconfig
    if evaluations.lacks(checkpoint_step(runconfig.model_dir), end):
        check_evaluation(model, data, params, evaluations)
        path = latest_checkpoint(runconfig.model_dir)
        tf.logging.info("evaluating %s, which has not been evaluated yet", path)
        set_stop_message(f"stopped before its first step; the same command continues from {path}")
        hooks = [CheckpointHook(path), BatchesHook()]
        found = estimator.evaluate(data.INPUTS.eval, eval_steps(runconfig), hooks, path)
        evaluations.export(estimator, "", path, found, False)
    evaluations.keep_best()


def check_evaluation(model, data, params, evaluations):
    """Raises the errors of the first evaluation before training starts."""
    import tensorflow.compat.v1 as tf

    tree = schema.as_tree(params)
    with tf.Graph().as_default():
        dataset = data.INPUTS.eval(tree)
        if not evaluations.rules:
            return
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        spec = model.model_fn(*batch, tf.estimator.ModeKeys.EVAL, tree)
        metric_fn, tensors, *_ = spec.host_call
        evaluations.check_metrics(metric_fn(*tensors))


def train_until(estimator, data, mode, params, hooks, end, evaluations):
    """Trains up to the global step `end`, and evaluates if `mode` is train_and_eval."""
    import tensorflow.compat.v1 as tf

    from modelzoo.common.train.estimator import BatchesHook

    runconfig, sparsifier = params.runconfig, sparsifier_of(params)
    given = {"max_steps": end, "hooks": hooks, "saving_listeners": listeners(estimator, params)}
    if mode == "train":
        estimator.train(data.INPUTS.train, sparsifier=sparsifier, **given)
        return
    estimator.train_and_evaluate(
        tf.estimator.TrainSpec(data.INPUTS.train, **given),
        tf.estimator.EvalSpec(
            data.INPUTS.eval,
            steps=eval_steps(runconfig),
            hooks=[BatchesHook()],
            exporters=evaluations,
            start_delay_secs=0,
            throttle_secs=runconfig.throttle_secs,
        ),
        sparsifier=sparsifier,
    )


def listeners(estimator, params):
    """Returns the listeners of the checkpoint saver: samples of a language model."""
    if not params.runconfig.sample_every or not job.is_first():
        return []
    from modelzoo.common.generate.samples import SampleListener

    return [SampleListener(estimator, params)]


def eval_steps(runconfig):
    """Returns the batches of an evaluation; None, the whole set, where no number above 0 is set."""
    steps = runconfig.eval_steps
    return steps if steps is not None and steps > 0 else None


def evaluate(estimator, data, mode, runconfig, use_cs):
    """Evaluates one checkpoint, or with `mode` eval_all every one in model_dir.

    A training at the same time may remove some: the others are evaluated, and where none is left,
    the one that is the latest now.
    """
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.checkpoint_files import (
        all_checkpoints,
        check_damaged,
        chosen_checkpoint,
    )
    from modelzoo.common.train.estimator import BatchesHook, CheckpointHook
    from modelzoo.common.train.evaluations import chart_with_training

    paths = all_checkpoints(runconfig.model_dir) if mode == "eval_all" else []
    paths, evaluated = paths or [chosen_checkpoint(runconfig)], 0
    while paths:
        path = paths.pop(0)
        tf.logging.info("evaluating %s", path)
        hooks = [CheckpointHook(path), BatchesHook()]
        try:
            steps = eval_steps(runconfig)
            found = estimator.evaluate(data.INPUTS.eval, steps, hooks, path, use_cs=use_cs)
            chart_with_training(runconfig.model_dir, found["global_step"], found)
            evaluated += 1
        except (CheckpointError, tf.OpError, ValueError):
            # Of several wafers, others may have opened it in time.
            if os.path.exists(f"{path}.index") or job.wafers() > 1:
                raise
            tf.logging.warning("%s was removed during the run and is not evaluated", path)
            if not paths and not evaluated:
                paths = [chosen_checkpoint(runconfig)]
    if mode == "eval_all":
        check_damaged(runconfig.model_dir)


def predict(estimator, data, params, use_cs):
    """Predicts with one checkpoint: writes rows, or whatever the model's ``prediction.py`` does.

    If a training removes the checkpoint before it is read, the latest one is used.
    """
    import tensorflow.compat.v1 as tf

    from modelzoo.common.model_dir.checkpoint_files import chosen_checkpoint
    from modelzoo.common.train import predictions

    if not job.is_first():  # one wafer predicts
        return
    package = registry.find_prediction(params.model_name) or predictions
    while True:
        path = chosen_checkpoint(params.runconfig)
        try:
            package.predict(estimator, data.INPUTS, params, path, use_cs)
            return
        except (ConfigError, DataError):
            raise
        except (CheckpointError, tf.OpError, ValueError):
            if os.path.exists(f"{path}.index"):
                raise
            tf.logging.warning("%s was removed during the run; another checkpoint is used", path)


if __name__ == "__main__":
    run()
