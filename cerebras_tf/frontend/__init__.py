"""What every front end needs to run a model: programs, activation budget, cache, micro-batches.

Nothing here imports TensorFlow or PyTorch. A front end implements `FrontEnd` and runs `ModelStep`.
"""
