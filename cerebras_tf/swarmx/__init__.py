"""Between wafers: sums of gradients, copies of weights, and who belongs to a job."""
