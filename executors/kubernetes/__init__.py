"""The serving plane on Kubernetes: engines as pods, and workloads that others own."""
