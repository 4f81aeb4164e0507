"""Coral's allocation of whole-node templates (sec. 4.3), solved by decomposition and certified.

Shoal's planner shares nodes between models and rents them as columns, which ties all groups
together: there one MIP proves more, sooner (`autoscaler.optimizer`). On the paper's own instances,
where each template takes whole nodes, mixes of covers bound far better than the linear relaxation;
`loadtests.allocation_bench` and the experiments beside Coral's figures solve them with this.
"""
