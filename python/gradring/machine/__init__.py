"""What is found here: the machine, the libraries, and what this copy of gradring was built with."""
