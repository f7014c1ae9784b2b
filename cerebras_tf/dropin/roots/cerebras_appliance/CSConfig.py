"""`CSConfig`, how a run uses the cluster; no cluster is there to apply it to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .cluster_client import VolumeMount


@dataclass
class CSConfig:
    """How a run uses the cluster. None leaves the choice to the software.

    Attributes:
      num_csx: number of wafers.
      max_wgt_servers: most processes that hold weights.
      max_act_per_csx: most processes that feed one wafer with activations.
      num_workers_per_csx: input workers of one wafer; 0 chooses.
      transfer_processes: processes that transfer weights.
      mgmt_address: address of the cluster's manager.
      mgmt_namespace: namespace of the run there.
      credentials_path: file of the credentials for it.
      debug_args: a DebugArgs message.
      execution_strategy: a value of ExecutionStrategy.
      mount_dirs: folders that workers see.
      python_paths: folders workers import from.
      volume_mounts: volumes that workers see.
      job_labels: labels of the run, "key=value".
      job_time_sec: seconds after which the run is ended.
      disable_version_check: accept a cluster of another version.
    """

    num_csx: int = 1
    max_wgt_servers: Optional[int] = None
    max_act_per_csx: Optional[int] = None
    num_workers_per_csx: int = 0
    transfer_processes: Optional[int] = None
    mgmt_address: Optional[str] = None
    mgmt_namespace: Optional[str] = None
    credentials_path: Optional[str] = None
    debug_args: Any = None
    execution_strategy: Optional[int] = None
    mount_dirs: Optional[list[str]] = None
    python_paths: Optional[list[str]] = None
    volume_mounts: list[VolumeMount] = field(default_factory=list)
    job_labels: Optional[list[str]] = None
    job_time_sec: Optional[int] = None
    disable_version_check: bool = False
