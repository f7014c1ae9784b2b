"""`CSConfig`: how a run uses the cluster. Without a cluster it has no effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .cluster_client import VolumeMount


@dataclass
class CSConfig:
    """How a run uses the cluster. None lets the software choose.

    Attributes:
      num_csx: number of wafers.
      max_wgt_servers: maximum number of weight servers.
      max_act_per_csx: maximum number of activation servers per wafer.
      num_workers_per_csx: input workers per wafer; 0 lets the software choose.
      transfer_processes: processes that transfer weights.
      mgmt_address: address of the cluster's manager.
      mgmt_namespace: namespace of the run in the cluster.
      credentials_path: file with the credentials for the manager.
      debug_args: a DebugArgs message.
      execution_strategy: a value of ExecutionStrategy.
      mount_dirs: folders mounted in workers.
      python_paths: folders that workers import from.
      volume_mounts: volumes mounted in workers.
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
