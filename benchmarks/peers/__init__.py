"""What others offer for the same operations; none of it is imported before it is asked for."""
