"""Runs it: ``python -m modelzoo.bert.fine_tuning.extractive_summarization.run -p FILE``."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="bert.fine_tuning.extractive_summarization")
