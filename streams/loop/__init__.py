"""The control loop of one controller, its clock of ticks and the latest records that it reads."""
