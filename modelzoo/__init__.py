"""The model zoo: models, their configurations' schemas and their input. Holds no machinery."""
