"""Memory of running programs: the arena of intermediates, who else holds a tensor's memory, huge pages of results."""
