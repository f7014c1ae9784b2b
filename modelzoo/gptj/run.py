"""Runs GPT-J and GPT-NeoX: ``python -m modelzoo.gptj.run -m train -p FILE``. Nothing else."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="gptj")
