"""The serving plane on Kubernetes: engines as Shoal's own pods, or as pods of workloads with
another owner."""
