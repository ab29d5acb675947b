"""Amazon EC2 as a provider of machines: spot and on-demand by RunInstances, known by client token and tags."""
