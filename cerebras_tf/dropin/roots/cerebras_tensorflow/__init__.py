"""The appliance's TensorFlow import names; the same objects as under `cerebras.tf`."""
