"""Learning from single events: elastic weight consolidation, policy gradients for routers."""
