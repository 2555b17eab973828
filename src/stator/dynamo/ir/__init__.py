"""The result of a capture as plain data: the captured frame, how objects are made again, where frames resume."""
