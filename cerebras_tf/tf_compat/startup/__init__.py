"""The folder that launchers of scripts put first into PYTHONPATH, for its sitecustomize."""
