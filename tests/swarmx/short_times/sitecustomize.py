"""Python imports this at its start, if the folder is on its path: a job waits less than usual."""

from cerebras_tf.swarmx import heartbeats

heartbeats.HEARTBEAT_S = 0.2
heartbeats.ENDED_WAIT_S = 0.8
heartbeats.STOPPED_S = 0.5
heartbeats.GRACE_S = 0.8
