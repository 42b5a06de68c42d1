"""The communicator: how a process gets one, its calls, and what ranks do together by them."""
