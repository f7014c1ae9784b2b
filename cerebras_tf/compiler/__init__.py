"""StepGraph -> Program: layers, order of work, memory and schedule. No arithmetic happens here."""
