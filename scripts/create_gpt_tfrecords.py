#!/usr/bin/env python3
"""Makes the records of GPT-2, GPT-3 and GPT-J: `cerebras-tf prepare gpt` here."""

if __name__ == "__main__":
    import launch

    launch.run("prepare", "gpt")
