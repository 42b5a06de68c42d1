NEEDED = {}
def run(*a): return True
def estimate(*a): return 0.0
