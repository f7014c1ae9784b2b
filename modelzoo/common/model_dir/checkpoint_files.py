"""Which checkpoint a run starts from or evaluates, and copies of checkpoints.

It looks at files and at TensorFlow's list of them (the file ``checkpoint`` of a folder); what is in
a checkpoint is compared with a model in ``modelzoo/common/train/estimator.py``.
"""

import contextlib
import filecmp
import glob
import os
import shutil
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.api import (
    CheckpointReader,
    advice_on_damage,
    checkpoint_state,
    data_path,
    data_paths,
    find_cut_files,
    job,
    mpi,
    named,
    open_checkpoint,
    read_variable,
    remove_begun,
    remove_bundle,
    writer_of,
)
from cerebras_tf.errors import CheckpointError, ConfigError, DataError
from cerebras_tf.whole_file import remove_partial, replacing
from modelzoo.common.config.params import saved_runconfig
from modelzoo.common.files.path_advice import CHECKPOINT_END
from modelzoo.common.model_dir.folder import LIST, TRAINED_ON, no_checkpoint

POSITION = "data_position.json"  # see modelzoo/common/model_dir/resume.py
CARRIED = (POSITION, TRAINED_ON)  # go with a checkpoint that another folder goes on from
# More than that --validate_only does not read.
MAX_VALIDATED_BYTES = 1 << 30
INSTEAD = "--checkpoint_path {} to evaluate, --resume_from {} with another -o to train"


def find_checkpoint(path, option="checkpoint_path"):
    """Returns the prefix of the checkpoint that a user means.

    Args:
        path: the prefix itself, one of its files, or a folder, which means its latest.
    """
    if os.path.isdir(path):
        found = latest_checkpoint(path) or next(reversed(all_checkpoints(path)), None)
        if found is None:
            raise no_checkpoint(path, option)
        return found
    prefix = CHECKPOINT_END.sub("", path)
    if not glob.glob(f"{glob.escape(prefix)}.index") and not data_files(prefix):
        raise no_checkpoint(path, option)
    check_files(prefix)
    return prefix


def latest_checkpoint(folder):
    """Returns the prefix of a folder's latest checkpoint, None where its list is absent."""
    path = os.path.join(folder, LIST)
    if not os.path.exists(path):
        return None
    prefix = _listed(folder)
    if not prefix:
        size = os.path.getsize(path)
        raise without_list(folder, f"{size} bytes in another format" if size else "an empty file")
    try:
        check_files(prefix)
    except CheckpointError:
        if _listed(folder) in (prefix, ""):
            raise
        return latest_checkpoint(folder)  # training there has removed it meanwhile
    return prefix


def _listed(folder):
    """Returns the latest checkpoint by a folder's list, "" where that is damaged or empty."""
    state = checkpoint_state(folder)
    return state.model_checkpoint_path if state else ""


def without_list(folder, received):
    """Returns the error for a folder whose list names no checkpoint: what was found in place."""
    found = all_checkpoints(folder)
    advice = "Remove it to start again."
    if found:
        line = f'model_checkpoint_path: "{os.path.basename(found[-1])}"'
        advice = f"To resume from {found[-1]}, set its content to {line}"
    return CheckpointError(
        f"{os.path.join(folder, LIST)}: must contain the latest checkpoint of its folder. "
        f"Received: {received}. {advice}"
    )


def check_files(prefix):
    """Raises a CheckpointError if files of a checkpoint are missing, or its index is damaged."""
    if CheckpointReader.is_a_checkpoint(prefix):
        return
    if os.path.exists(f"{prefix}.index"):
        try:
            wanted = data_paths(prefix)
        except CheckpointError as error:
            raise CheckpointError(
                f"{prefix}.index: must be the complete index of a checkpoint. Received: "
                f"{error.__cause__}. {advice_instead(prefix)}"
            ) from error
    else:
        count = max((int(name[-5:]) for name in data_files(prefix)), default=1)
        wanted = [data_path(prefix, number, count) for number in range(count)]
    missing = [name for name in [f"{prefix}.index", *wanted] if not os.path.exists(name)]
    raise CheckpointError(
        f"{prefix}: must have all its files. Received: no {', no '.join(missing)}. "
        f"{advice_instead(prefix)}"
    )


def check_sizes(prefix):
    """Raises a CheckpointError if a data file ends before the bytes that the index places in it."""
    faults = [
        f"{file.path}: must have at least {file.needed} bytes. Received: {file.size}, which end "
        f"before {named(file.names)}."
        for file in find_cut_files(prefix)
    ]
    if faults:
        raise CheckpointError(f"{' '.join(faults)} {advice_instead(prefix)}")


def advice_instead(prefix):
    """Returns what to do about a damaged checkpoint: restore it, or take the one before."""
    before, writer = CheckpointReader.before(prefix), writer_of(os.path.dirname(prefix) or ".")
    if writer:
        return f"Process {writer} writes in its folder: wait until it ends."
    if before is None:
        return "Restore the files; there is no earlier checkpoint."
    return f"Restore the files, or use the earlier checkpoint: {INSTEAD.replace('{}', before)}."


def data_files(prefix):
    """Returns the paths of a checkpoint's shards that are there, sorted."""
    return sorted(glob.glob(f"{glob.escape(prefix)}.data-?????-of-?????"))


def all_checkpoints(folder):
    """Returns the prefixes of the whole checkpoints of a folder, in the order of their steps."""
    return CheckpointReader.all_checkpoints(folder)


def check_damaged(folder):
    """Raises a CheckpointError that names the damaged checkpoints of a folder.

    They have an index, or the list of the folder names them; one without any file has been
    removed, unless the list calls it the latest.
    """
    state = checkpoint_state(folder)
    names = {path.stem for path in Path(folder).glob("*.index")}
    names.update(map(os.path.basename, state.all_model_checkpoint_paths if state else ()))
    latest = os.path.basename(state.model_checkpoint_path) if state else None
    faults = []
    for name in sorted(names, key=lambda name: (CheckpointReader.step_of(name), name)):
        prefix = os.path.join(folder, name)
        try:
            check_files(prefix)
        except CheckpointError as error:
            if name == latest or data_files(prefix) or os.path.exists(f"{prefix}.index"):
                faults.append(str(error))
    if faults:
        raise CheckpointError(" ".join(faults))


def chosen_checkpoint(runconfig):
    """Returns the checkpoint to evaluate: `checkpoint_path`, or the latest of `model_dir`."""
    return find_checkpoint(runconfig.checkpoint_path or runconfig.model_dir)


def warn_of_checkpoint(params_file, runconfig):
    """Warns if training starts from random weights next to a checkpoint of its params file."""
    folder = os.path.dirname(os.path.abspath(params_file))
    begins = not runconfig.checkpoint_path and not runconfig.resume_from
    if begins and not latest_checkpoint(runconfig.model_dir) and latest_checkpoint(folder):
        tf.logging.warning(
            "training starts from random weights, although the folder of %s has a checkpoint; "
            "--checkpoint_path %s trains from it",
            params_file,
            folder,
        )


def check_start(runconfig):
    """Checks where training starts, before anything is written.

    A folder that has begun goes on from its own latest checkpoint. Where it began from the one
    that the command names, this is the same command again; any other would be ignored.
    """
    folder = runconfig.model_dir
    latest = latest_checkpoint(folder)
    if latest:
        check_sizes(latest)
    begun = os.path.exists(os.path.join(folder, "params.yaml")) or not runconfig.resume_from
    unlisted = () if latest else all_checkpoints(folder)
    if begun and any(not prefix.endswith("-0") for prefix in unlisted):
        raise without_list(folder, "no such file")
    for key in ("checkpoint_path", "resume_from"):
        given = getattr(runconfig, key)
        if not given:
            continue
        if not latest:
            found = find_checkpoint(given, key)
            if key == "resume_from":
                check_sizes(found)
            continue
        before = saved_runconfig(runconfig.model_dir).get(key)
        same = before and _plain(str(before)) == _plain(given)
        if not same and not (key == "resume_from" and only_copied(latest, given)):
            raise ConfigError(
                f"{key}: only a new run can start from another checkpoint. Received: {given}, but "
                f"{runconfig.model_dir} has a checkpoint already, {latest}. Remove --{key} to "
                "resume from it, or use another folder with -o."
            )


def validate_checkpoint(mode, runconfig):
    """Checks the checkpoint that a mode would read, and logs what was compared and what will be.

    All of a small one is read. Of those of `eval_all` the latest is checked.
    """
    if mode in ("train", "train_and_eval"):
        latest = latest_checkpoint(runconfig.model_dir)
        given = None if latest else runconfig.checkpoint_path or runconfig.resume_from
        prefix = find_checkpoint(given) if given else latest
        if prefix is None:
            return
    else:
        prefix = chosen_checkpoint(runconfig)
    check_sizes(prefix)
    reader, size = open_checkpoint(prefix), sum(map(os.path.getsize, data_files(prefix)))
    names = reader.get_variable_to_shape_map() if size <= MAX_VALIDATED_BYTES else ()
    for name in names:
        read_variable(reader, prefix, name)
    tf.logging.info(
        "%s: its index and file sizes are correct, and %s",
        prefix,
        f"so are the checksums of all {len(names)} variables"
        if names
        else f"the checksums of its {size / 1e9:.3g} GB are verified when they are read",
    )


def only_copied(latest, given):
    """Whether a run was stopped after `resumed` had made a folder's first checkpoint, and no later.

    Args:
        given: what --resume_from names. An index holds the checksum of every variable.
    """
    if os.path.exists(os.path.join(os.path.dirname(latest), "params.yaml")):
        return False
    return filecmp.cmp(f"{latest}.index", f"{find_checkpoint(given)}.index", shallow=False)


def _plain(path):
    return os.path.abspath(CHECKPOINT_END.sub("", path))


@contextlib.contextmanager
def resumed(runconfig):
    """Within: `model_dir` holds a copy of the checkpoint `resume_from`, where it has none yet.

    So training goes on from it in all respects: step, optimizer state, random numbers, input. If
    the run ends before it has written anything itself, the folder is left as it was.
    """
    model_dir = runconfig.model_dir
    if not runconfig.resume_from or latest_checkpoint(model_dir):
        mpi.swarm().objects(None)  # none looks once more before all have looked
        yield
        return
    if not job.is_first():
        mpi.swarm().objects(None)
        mpi.swarm().objects(None)  # the first has copied it
        yield
        return
    mpi.swarm().objects(None)
    prefix, copy = copy_source(runconfig)
    mpi.swarm().objects(None)
    began = os.path.join(model_dir, "params.yaml")
    try:
        yield
    except (CheckpointError, DataError) as error:
        if os.path.exists(began):
            raise
        text, advice = str(error), advice_instead(prefix)
        for of_copy in (advice_on_damage(copy), advice_instead(copy)):
            text = text.replace(of_copy, advice)
        for name in CARRIED:
            path = os.path.join(os.path.dirname(prefix), name)
            text = text.replace(os.path.join(model_dir, name), path)
        raise type(error)(text.replace(copy, prefix)) from error
    finally:
        if not os.path.exists(began):
            remove_checkpoint(copy)
            os.remove(os.path.join(model_dir, LIST))
            for name in CARRIED:
                _discard(os.path.join(model_dir, name))


def copy_source(runconfig):
    """Copies the checkpoint `resume_from` to `model_dir`, and what is CARRIED with it.

    Training there may remove it meanwhile: then it is the one that its folder has by then.

    Returns:
        Its prefix, and that of the copy.
    """
    model_dir = runconfig.model_dir
    while True:
        prefix = find_checkpoint(runconfig.resume_from, "resume_from")
        if os.path.realpath(os.path.dirname(prefix)) == os.path.realpath(model_dir):
            raise CheckpointError(
                "--resume_from: must be a checkpoint in another folder than model_dir. Received: "
                f"{prefix}, with model_dir {model_dir}. Use another folder with -o."
            )
        paths = [os.path.join(os.path.dirname(prefix), name) for name in CARRIED]
        others_there = list(filter(os.path.exists, paths))
        try:
            name = f"model.ckpt-{step_of(prefix)}"
            for path in set(paths).difference(others_there):  # of a copy that was killed
                _discard(os.path.join(model_dir, os.path.basename(path)))
            copy_checkpoint(prefix, model_dir, name, others_there)
            return prefix, os.path.join(model_dir, name)
        except (CheckpointError, FileNotFoundError):
            if os.path.exists(f"{prefix}.index"):
                raise


def step_of(prefix):
    """Returns the global step that a checkpoint holds."""
    reader = open_checkpoint(prefix)
    if not reader.has_tensor("global_step"):
        raise CheckpointError(
            f"{prefix}: must contain the step that training resumes from. Received: no "
            "global_step. Start from its weights with --checkpoint_path instead."
        )
    try:
        return int(read_variable(reader, prefix, "global_step"))
    except CheckpointError as error:
        text = str(error).replace(advice_on_damage(prefix), advice_instead(prefix))
        raise CheckpointError(text) from error


def copy_checkpoint(prefix, folder, name, others_there=()):
    """Makes a checkpoint the latest of another folder.

    Its list names the copy only once all files are there whole. Those of the checkpoint are linked
    where the file system can. Where copying fails, none is left. Of a checkpoint that is removed
    meanwhile the files are no longer there, the index first of all: that is a FileNotFoundError.
    """
    os.makedirs(folder, exist_ok=True)
    made = os.path.join(folder, name)
    meta = [path for path in (f"{prefix}.meta",) if os.path.exists(path)]
    files = [*data_files(prefix), *meta, f"{prefix}.index"]
    others = {path: os.path.join(folder, os.path.basename(path)) for path in others_there}
    remove_begun(folder)  # by a process that was killed
    remove_partial(folder)
    try:
        for path in files:
            _link(path, made + path[len(prefix) :])
        for path, target in others.items():
            _copy(path, target)
        tf.train.update_checkpoint_state(os.path.abspath(folder), name, [name])
    except BaseException:
        remove_checkpoint(made)
        for target in others.values():
            _discard(target)
        remove_begun(folder)
        raise


def _link(path, target):
    _discard(target)  # of a copy that was killed; it may be a link to `path`
    try:
        os.link(path, target)
    except OSError:
        _copy(path, target)


def _copy(path, target):
    with replacing(target) as partial:
        shutil.copyfile(path, partial)


def _discard(path):
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def remove_checkpoint(prefix):
    """Removes the files of a checkpoint, its index first, and the graph that is saved with it."""
    remove_bundle(prefix)
    _discard(f"{prefix}.meta")
