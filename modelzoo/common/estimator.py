"""The models' way to the estimator: what a model_fn returns, and how the runner makes one.

It deliberately trains nothing.
"""

from __future__ import annotations

from cerebras_tf import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from modelzoo.common import schema

__all__ = ["CSEstimatorSpec", "make_estimator"]


def make_estimator(model_fn, params, use_cs):
    """Makes the estimator that `params` describe."""
    runconfig = params.runconfig
    every = runconfig.log_step_count_steps or runconfig.save_summary_steps
    config = CSRunConfig(
        cs_ip=runconfig.cs_ip,
        num_csx=runconfig.num_csx,
        model_dir=runconfig.model_dir,
        stack_params={"ir_mode": runconfig.ir_mode},
        tf_random_seed=runconfig.tf_random_seed,
        save_summary_steps=runconfig.save_summary_steps,
        save_checkpoints_steps=runconfig.save_checkpoints_steps,
        keep_checkpoint_max=runconfig.keep_checkpoint_max,
        log_step_count_steps=None if runconfig.disable_standard_logs else every,
        device_fn=(lambda op: runconfig.device) if runconfig.device else None,
    )
    return CerebrasEstimator(
        model_fn=model_fn,
        model_dir=runconfig.model_dir,
        compile_dir=runconfig.compile_dir,
        config=config,
        params=schema.as_tree(params),
        warm_start_from=runconfig.checkpoint_path if "train" in runconfig.mode else None,
        use_cs=use_cs,
    )
