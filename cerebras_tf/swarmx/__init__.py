"""Communication between wafers, and the processes of a job."""
