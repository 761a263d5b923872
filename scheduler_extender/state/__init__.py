"""What is known of the cluster, and what follows from it: facts, decisions, remembered answers."""
