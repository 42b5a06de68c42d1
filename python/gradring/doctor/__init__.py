"""`gradring doctor`: what is wrong with a machine, a job or its servers, and what to change."""
