"""Jobs: verbs that run in processes of their own, which outlive the studio. Their state is in the folder `.studio`."""
