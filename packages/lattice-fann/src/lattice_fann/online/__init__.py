"""Learning from single events: elastic weight consolidation and policy-gradient training of routers."""
