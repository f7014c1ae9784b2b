"""The folder of a model: its checkpoints, and where training resumes."""
