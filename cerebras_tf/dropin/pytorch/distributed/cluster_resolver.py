"""The processes that load data, of which there is one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TaskSpec:
    """A process.

    Attributes:
        rank: among all.
        local_rank: among those of the same wafer.
        wse_id: of its wafer.
        node_name: of its computer.
    """

    rank: int = 0
    local_rank: int = 0
    wse_id: int = 0
    node_name: str = "unknown"


@dataclass
class ClusterSpec:
    """All processes.

    Attributes:
        tasks: the processes.
        rank: of this one.
        num_csx: number of wafers.
        num_workers_per_csx: processes of each wafer.
    """

    tasks: list[TaskSpec] = field(default_factory=lambda: [TaskSpec()])
    rank: int = 0
    num_csx: int = 1
    num_workers_per_csx: int = 1

    def num_tasks(self) -> int:
        """Number of processes."""
        return len(self.tasks)

    def task(self) -> TaskSpec:
        """This process."""
        return self.tasks[self.rank]


class ClusterResolver:
    """Returns the processes."""

    cluster_spec = ClusterSpec()
