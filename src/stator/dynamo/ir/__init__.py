"""The result of a capture as plain data: the captured frame, recipes that rebuild objects, resume points."""
