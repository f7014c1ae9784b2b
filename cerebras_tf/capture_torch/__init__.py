"""Captures a PyTorch model, its loss and its optimizer step as a StepGraph."""
