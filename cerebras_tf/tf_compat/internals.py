"""Every private name of TensorFlow and tf.estimator that this project uses.

Other modules import private modules from here. `MEMBERS` lists the private attributes and methods
that they use or override. A contract test checks all of them on the installed TensorFlow. Each was
seen in the releases FIRST_RELEASE and LAST_RELEASE.
"""

from __future__ import annotations

from tensorflow.python.checkpoint import graph_view  # what a Saver with objects saves
from tensorflow.python.client import session as client_session
from tensorflow.python.data.ops import dataset_ops  # of the iterators that tf.estimator creates
from tensorflow.python.data.util import structure  # composite tensors of batches
from tensorflow.python.eager import record  # registers the gradient of an operation with tapes
from tensorflow.python.framework import (
    op_def_registry,  # definitions of op types, parsed once
    random_seed,  # the seed of graphs without one
)
from tensorflow.python.framework import ops as tf_ops  # the registry of gradient functions
from tensorflow.python.framework.func_graph import FuncGraph  # the class of function bodies
from tensorflow.python.ops import (
    gradients_util,  # tf.gradients, optimizers and Keras all call its _GradientsHelper
    resources,  # resources that are not variables
)
from tensorflow.python.ops import variables as tf_variables  # what a Saver without a list saves
from tensorflow.python.summary.writer import writer_cache  # the writers that hooks share
from tensorflow.python.training import (
    basic_session_run_hooks,  # timers of savers and evaluations
    session_manager,  # where tf.estimator creates its sessions
    training_util,  # the tensor that reads the step, which TensorFlow's own hooks use
)
from tensorflow.python.training.saving import saveable_object_util  # names of saved objects
from tensorflow.python.util import (
    deprecation,  # the switch of deprecation warnings
    tf_export,  # the names under which functions are exported
)

__all__ = [
    "FuncGraph",
    "basic_session_run_hooks",
    "client_session",
    "dataset_ops",
    "deprecation",
    "gradients_util",
    "graph_view",
    "op_def_registry",
    "random_seed",
    "record",
    "resources",
    "saveable_object_util",
    "session_manager",
    "structure",
    "tf_export",
    "tf_ops",
    "tf_variables",
    "training_util",
    "writer_cache",
]

FIRST_RELEASE, LAST_RELEASE = "2.15.1", "2.21.0"
# {module or class: private attributes that are used, and private methods that are overridden}
MEMBERS = {
    "tensorflow.python.client.session": "_FetchHandler _REGISTERED_EXPANSIONS",
    "tensorflow.python.client.session.BaseSession": (
        "_call_tf_sessionrun _config _do_call _do_run _extend_graph _graph "
        "_make_callable_from_options"
    ),
    "tensorflow.python.data.ops.dataset_ops.DatasetV1": "_make_initializable_iterator",
    "tensorflow.python.data.ops.iterator_ops.Iterator": (
        "_flat_tensor_shapes _flat_tensor_types _iterator_resource"
    ),
    "tensorflow.python.eager.backprop.GradientTape": "_pop_tape _push_tape _tape",
    "tensorflow.python.framework.ops.Graph": (
        "_add_function _create_op_internal _functions _get_function _unsafe_unfinalize"
    ),
    "tensorflow.python.framework.ops.Operation": (
        "_add_control_inputs _colocation_code_locations _device_code_locations "
        "_get_control_flow_context _remove_all_control_inputs _set_attr _update_input"
    ),
    "tensorflow.python.ops.gradients_util": "_GradientsHelper",
    "tensorflow.python.ops.variables": "_all_saveable_objects",
    "tensorflow.python.ops.variables.PartitionedVariable": "_variable_list",
    "tensorflow.python.ops.variables.Variable": "_get_save_slice_info _save_slice_info",
    "tensorflow.python.training.basic_session_run_hooks.CheckpointSaverHook": (
        "_checkpoint_dir _get_saver _global_step_tensor _save_graph_def _save_path "
        "_set_steps_per_run _steps_per_run _summary_writer _timer"
    ),
    "tensorflow.python.training.monitored_session.Scaffold": "_user_init_fn",
    "tensorflow.python.training.optimizer.Optimizer": (
        "_create_non_slot_variable _get_non_slot_variable _get_or_make_slot_with_initializer"
    ),
    "tensorflow.python.training.saver.Saver": (
        "_MaybeDeleteOldCheckpoints _RecordLastCheckpoint "
        "_checkpoints_to_be_deleted _is_built _next_checkpoint_time _var_list"
    ),
    "tensorflow.python.training.training_util": "_get_or_create_global_step_read",
    "tensorflow.python.util.deprecation": "_PRINT_DEPRECATION_WARNINGS",
    "tensorflow.python.util.tf_export": "_Attributes",
    "tensorflow_estimator.python.estimator.estimator": "_assert_members_are_not_overridden",
    "tensorflow_estimator.python.estimator.estimator.Estimator": (
        "_add_meta_graph_for_mode _assert_members_are_not_overridden _call_input_fn "
        "_call_model_fn _call_model_fn_eval _config _create_and_assert_global_step "
        "_create_global_step _export_all_saved_models _get_features_and_labels_from_input_fn "
        "_session_config _train_with_estimator_spec _validate_features_in_predict_input "
        "_warm_start_settings"
    ),
    "tensorflow_estimator.python.estimator.run_config.RunConfig": (
        "_eval_distribute _init_distributed_setting_from_environment_var "
        "_maybe_overwrite_session_config_for_distributed_training _train_distribute"
    ),
}
